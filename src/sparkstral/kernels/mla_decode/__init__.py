"""Latent attention, absorbed form: w_uk is already in the query, the latents are themselves keys and values.

    mla_decode(q [T, N, W + P], pool [num_blocks, block_size, W + P], block_tables [R, B] int64,
               cu_seqlens_q (R + 1 ints), seq_lens (R ints), softmax_scale, value_width=W) -> [T, N, W]

q is [w_ukᵀ·q_nope | q_rope], rotated and scaled: width 320 against one key head that all N heads share, and
value the first 256. The softmax scale is that of the model's head, 128^-0.5, not 320^-0.5. Request r owns
q's rows cu_seqlens_q[r] to cu_seqlens_q[r+1] (one or more): the last of its seq_lens[r] tokens, whose latents
(these tokens' included) the pool holds at the blocks of block_tables[r]. A token sees itself and those before
it. Scores, softmax and sum are float32. A pool in FP8 (kernels/latent_pool) is read as the numbers that it stands for.

Rows of the pool past seq_lens[r] are never read: they may hold anything, NaN included. A request's result
does not depend on the batch that it is in, nor on which blocks hold it, to the bit.
Cost for each head: n·S·(320 + 256) multiply-adds, S·320 elements read once for all heads: for few queries.
The Triton form (`triton_kernel`) does the same in three launches, with what stands around it fused:

    absorb(parts [S, T, N·(64 + P)], rotation [T, P/2] complex64, query_scale [T], w_uk [N, 64, W]) -> q
    mla_decode(q, pool, block_tables, cu_seqlens_q [R + 1], seq_lens [R], softmax_scale, w_uv [N, 128, W],
               max_query_len=, workspace=) -> [T, N, 128]

w_uk and w_uv may be in FP8, a scale for each of their N·64 and N·128 rows (kernels/fp8_quantize): their numbers are
multiplied with exactly. The parts of the query's projection are summed in float32 and rounded, rotated, rounded,
scaled, rounded, as the references do one after the other; likewise the mean latent is rounded before w_uv. Lengths and
tables are int32 on the device, R at most 128; any number of queries a request, 1 to 8 is what it is made for. A
request with seq_len 0 pads the batch: its rows of the output are 0. block_size is a multiple of the tile's tokens or
divides them.

A sequence is cut into splits by its length alone, and every sum has one order: the result is deterministic, and a
request's result is that of any batch in which max_query_len · N needs the same tile (`single` or `several`), to
the bit; between the two tiles only the order of the matrix unit's additions differs. (`absorb` and the product
with w_uv are made token by token, in an order that no batch changes.) float32 is used for scores, softmax and sums,
p is rounded to the query's dtype. Of a pool in FP8 the scales multiply scores and p, powers of two that change no bit,
and the tiles are those of `fp8_tiles`.

Tolerance of the Triton form: 2e-2 absolute in bfloat16 with latents of standard deviation 1 (rounding of p), and at
most twice the error of bfloat16 PyTorch against float64. CUDA graph: the Triton form is safe: lengths, tables and
offsets are read on the device, the grid depends on R, max_query_len and the configuration, the workspace is the
caller's. The reference is not, its lengths are host integers. Source: docs/model.md, absorbed form.
"""

from sparkstral.kernels.mla_decode.reference import mla_decode

__all__ = ["mla_decode"]
