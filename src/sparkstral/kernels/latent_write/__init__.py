"""Store the tokens' latents in the cache of one layer.

    latent_write(pool [num_blocks, block_size, W + P], slots [T] int64, c_kv [T, W], k_rope [T, P]) -> None

Slot s is pool[s // block_size, s % block_size]; it gets c_kv (normalised), then k_rope (rotated, interleaved
pairs), rounded to the pool's dtype. pool is contiguous and changed in place; slots differ from each other and
may lie past 2^31 elements. Nothing else of the pool is read or written.

Tolerance of a fast kernel: none. CUDA graph: safe, nothing is read on the host.
"""

from sparkstral.kernels.latent_write.reference import latent_write

__all__ = ["latent_write"]
