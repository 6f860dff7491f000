"""Latent attention, expanded form: keys and values of every head are made from the cached latents.

    mla_prefill(q [T, N, 64 + P], pool [num_blocks, block_size, W + P], block_tables [R, B] int64,
                cu_seqlens_q (R + 1 ints), seq_lens (R ints), w_uk [N, 64, W], w_uv [N, 128, W],
                softmax_scale) -> [T, N, 128]

q is [q_nope | q_rope], rotated and scaled. Request r owns q's rows cu_seqlens_q[r] to cu_seqlens_q[r+1]: the
last of its seq_lens[r] tokens, whose latents (these tokens' included) the pool holds at the blocks of
block_tables[r]. A token sees itself and those before it. k = [w_uk·c_kv | k_rope], v = w_uv·c_kv; softmax
over q·k·softmax_scale in float32. A pool in FP8 (kernels/latent_pool) is read as the numbers that it stands for.

Rows of the pool past seq_lens[r] are never read: they may hold anything, NaN included. A request's result
does not depend on the batch that it is in, nor on which blocks hold it, to the bit.
Cost for each head: S·(64 + 128)·W multiply-adds to expand, n·S·(128 + 128) to attend: for chunks of prompts.
The Triton form walks passes over the keys that are planned once for a batch, the same in all layers:

    plan_passes(block_tables, cu_seqlens_q, seq_lens, block_size=, max_keys=) -> passes
    mla_prefill(q, pool, passes, w_kv_b [N·(64 + 128), W], softmax_scale, workspace=) -> [T, N, 128]

w_kv_b is the stored projection, each head's k_nope rows, then its v rows. A pass gathers the latents of its keys
(from FP8 exactly, in bfloat16), expands them with PyTorch's product into the workspace (N·192 elements a key) and
attends with a causal flash-attention kernel. All requests share one pass if their keys fit max_keys; else each has its
own, in pieces of max_keys keys with the running softmax kept in float32. It is deterministic, and the attention of a
request does not depend on the batch; its expanded keys may in the last bit, as the library's product rounds by its
number of rows (each sum there is float32, rounded to bfloat16 once). Which blocks hold a request changes no bit.

Tolerance of a fast kernel: 2e-2 absolute in bfloat16 for values of standard deviation 1 (rounding of p, v).
CUDA graph: neither form is safe, lengths are host integers. Source: docs/model.md, one decoder layer.
"""

from sparkstral.kernels.mla_prefill.reference import mla_prefill

__all__ = ["mla_prefill"]
