"""Store the tokens' latents in the cache of one layer.

    latent_write(pool [num_blocks, block_size, W + P], slots [T] int64, c_kv [T, W], k_rope [T, P]) -> None

Row t of the result is c_kv (normalised) followed by k_rope (rotated, interleaved pairs), rounded to the pool's dtype, at
pool[slot // block_size, slot % block_size]. pool is contiguous and changed in place; slots differ from each other and
may lie past 2^31 elements. Nothing else of the pool is read or written.
Exact: a fast kernel has no tolerance. Nothing is read on the host, so a CUDA graph may hold it.
"""

from sparkstral.kernels.latent_write.reference import latent_write

__all__ = ["latent_write"]
