"""Store the tokens' latents in the cache of one layer.

    latent_write(pool [num_blocks, block_size, W + P], slots [T] int64, c_kv [T, W], k_rope [T, P]) -> None
    (or of a pool in FP8, kernels/latent_pool: [num_blocks, block_size, W + 2P + 2] uint8)

Slot s is pool[s // block_size, s % block_size]; it gets c_kv (normalised), then k_rope (rotated, interleaved
pairs), rounded to the pool's dtype; in FP8 c_kv is quantized with a scale of its own (kernels/fp8_quantize, to the bit)
and k_rope rounded to bfloat16. pool is contiguous and changed in place; slots differ from each other and
may lie past 2^31 elements. Nothing else of the pool is read or written.

The Triton form starts from the first projection of the layer, which may lie in parts (kernels/bf16_linear):

    write_latents(parts [S, T, Q + W + P], q_a_norm [Q], kv_a_norm [W], rotation [T, P/2] complex64, slots [T],
                  eps, pool) -> q [T, Q]

It sums the parts, rounds, normalises the first Q lanes (returned: the input of q_b_proj) and the next W, rotates
the last P, and writes the latter two to their slots. A negative slot writes nothing: a row that pads the batch.
One token does not depend on the others. Widths W and P are powers of 2.

Tolerance of the Triton form: that of kernels/rms_norm and kernels/rope, one unit in the last place; in FP8 that may be
one code where a value lies between two.
CUDA graph: safe, nothing is read on the host.
"""

from sparkstral.kernels.latent_write.reference import latent_write

__all__ = ["latent_write"]
