"""Rotary position embedding over interleaved pairs, its YaRN frequencies, and the queries' llama-4 factor.

    yarn_inv_freq(dim=D, ...)                     -> [D/2] float32, computed in float64
    rotation(positions [T] int64, inv_freq)       -> [T, D/2] complex64: cos + i·sin, a float2 for a kernel
    rope(x [T, ..., D], rotation [T, D/2])        -> like x; x may be strided, the last dimension contiguous
    llama_4_scale(positions [T], beta, original)  -> [T] float32: 1 + beta·ln(1 + floor(position / original))

Pair i is the lanes (2i, 2i+1), before and after: lanes stay where they are, and this is the one layout of a
rotated vector, in the query and in the cache. (transformers writes the evens before the odds; dot products
are the same.) The angle is the float32 product of position and frequency, as in transformers and vLLM. The
rotation is computed in float32 and rounded to x's dtype once. No magnitude factor: yarn.apply_scale is false.

The Triton form serves whole queries of prompts, in place (decode steps rotate in kernels/mla_decode's absorb, keys in
kernels/latent_write):

    turn_queries(q [T, N, 64 + P], rotation [T, P/2], query_scale [T]) -> None

rotates the last P lanes, rounds, scales all lanes by the token's llama-4 factor, rounds.

Tolerance of a fast kernel: one unit in the last place of x's dtype, since fused multiply-adds may be used.
CUDA graph: safe, nothing is read on the host. Source: docs/model.md, YaRN frequencies and exact semantics.
"""

from sparkstral.kernels.rope.reference import llama_4_scale, rope, rotation, yarn_inv_freq

__all__ = ["llama_4_scale", "rope", "rotation", "yarn_inv_freq"]
