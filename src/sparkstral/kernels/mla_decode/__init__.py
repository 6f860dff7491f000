"""Latent attention, absorbed form: w_uk is already in the query, the latents are themselves keys and values.

    mla_decode(q [T, N, W + P], pool [num_blocks, block_size, W + P], block_tables [R, B] int64,
               cu_seqlens_q (R + 1 ints), seq_lens (R ints), softmax_scale, value_width=W) -> [T, N, W]

q is [w_ukᵀ·q_nope | q_rope], rotated and scaled: width 320 against one key head that all N heads share, and
value the first 256. The softmax scale is that of the model's head, 128^-0.5, not 320^-0.5. Request r owns
q's rows cu_seqlens_q[r] to cu_seqlens_q[r+1] (one or more): the last of its seq_lens[r] tokens, whose latents
(these tokens' included) the pool holds at the blocks of block_tables[r]. A token sees itself and those before
it. Scores, softmax and sum are float32.

Rows of the pool past seq_lens[r] are never read: they may hold anything, NaN included. A request's result
does not depend on the batch that it is in, nor on which blocks hold it, to the bit.
Cost for each head: n·S·(320 + 256) multiply-adds, S·320 elements read once for all heads: for few queries.
Tolerance of a fast kernel: 2e-2 absolute in bfloat16 with latents of standard deviation 1 (rounding of p).
CUDA graph: the reference is not safe, lengths are host integers. Source: docs/model.md, absorbed form.
"""

from sparkstral.kernels.mla_decode.reference import mla_decode

__all__ = ["mla_decode"]
