"""How many bytes the latent cache takes, and how tokens are counted in blocks.

Owns the arithmetic of the cache's size; must not know who uses a block. Source: 256 latent + 64 rope values
for each token and layer (docs/model.md); 36 layers in bfloat16 are 23,040 bytes a token, in FP8 13,896: a byte for each
of the 256, two for each of the 64, and a scale of two (kernels/latent_pool, which a test compares).
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.types import Precision

_LATENT, _ROPE = 256, 64
_FP8_SLOT_BYTES = _LATENT + 2 * _ROPE + 2

NULL_BLOCK = 0
"""Block 0 never belongs to a request. Block tables are padded with it, and a padded row of a captured graph
may write there without harm to anyone; it costs one block of the pool."""


def num_blocks_for(num_tokens: int, block_size_tokens: int) -> int:
    """Blocks that hold `num_tokens` of one request."""
    return -(-num_tokens // block_size_tokens)


def capacity_tokens(num_blocks: int, block_size_tokens: int) -> int:
    """Tokens that a pool of `num_blocks` holds, the null block left out."""
    return (num_blocks - 1) * block_size_tokens


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of one token's and one block's cache: `latent_width` values of `dtype_bytes` in each
    layer."""

    num_layers: int
    latent_width: int
    dtype_bytes: int
    block_size_tokens: int
    num_null_blocks: int = 1  # that no request gets; vLLM's sums, which the plan repeats for its fallback, have none

    @classmethod
    def of(cls, kv: Precision, num_layers: int, dtype_bytes: int, block_size_tokens: int) -> KvLayout:
        """`dtype_bytes`: of the model's own dtype, which latents have that are not in FP8."""
        if kv == "fp8":
            return cls(num_layers, _FP8_SLOT_BYTES, 1, block_size_tokens)
        return cls(num_layers, _LATENT + _ROPE, dtype_bytes, block_size_tokens)

    @property
    def bytes_per_token(self) -> int:
        return self.num_layers * self.latent_width * self.dtype_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size_tokens

    def pool_blocks_for(self, num_tokens: int) -> int:
        """Blocks of a pool in which one request of `num_tokens` fits: its own and the null block."""
        return num_blocks_for(num_tokens, self.block_size_tokens) + self.num_null_blocks

    def capacity_tokens(self, num_blocks: int) -> int:
        """Tokens that a pool of `num_blocks` holds for requests."""
        return (num_blocks - self.num_null_blocks) * self.block_size_tokens
