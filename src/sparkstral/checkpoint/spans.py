"""What a plan consists of: tensors to fill, and which bytes of which file fill them.

Plain values; must not know names of tensors or how bytes are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkstral.checkpoint.forms import Form, Part, is_scalar_part
from sparkstral.checkpoint.index import DTYPE_BYTES, TensorEntry


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor of the engine that files fill: a part of a slot, or of a layer's stack of experts (stacking)."""

    slot: str
    form: Form
    part: Part
    dtype: str  # a safetensors code
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def is_scalar(self) -> bool:
        """Whether a matrix has one number of it, so that files hold it in pieces of a few bytes."""
        return is_scalar_part(self.form, self.part)


@dataclass(frozen=True, slots=True)
class Span:
    """`num_bytes` of a file from `offset` on become elements of `buffer` from `first_element` on.

    The values are converted where the tensor's dtype is not the buffer's (only for scales, which are small).
    """

    tensor: TensorEntry
    offset: int
    num_bytes: int
    buffer: Buffer
    first_element: int

    @property
    def is_converted(self) -> bool:
        return self.tensor.dtype != self.buffer.dtype
