"""Images' embeddings on the device: made when a step says so, kept until one says otherwise.

Owns the memory, allocated once, and which of its rows are whose. The scheduler decides what is held
(scheduler/encoder_cache); must not know why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkstral.model.config import NUM_CHANNELS, PATCH_WIDTH, SPATIAL_MERGE_SIZE, TOKEN_SIZE
from sparkstral.model.forward_batch import ImageTokens
from sparkstral.model.pixtral import Grid, patches_of
from sparkstral.types import ImageInput, ScheduledRequest, SchedulerOutput

Encode = Callable[[Tensor, Sequence[Grid]], Tensor]  # patches [T, 588] and the images' grids -> [T / 4, H]


class EncoderCache:
    """Used by the engine thread alone."""

    def __init__(
        self,
        encode: Encode,
        capacity: int,
        max_image_tokens: int,
        hidden_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Room for `capacity` embeddings [hidden_size]."""
        self._encode = encode
        self._largest = round(max_image_tokens**0.5)  # tokens each way
        self._pool = torch.zeros(capacity, hidden_size, dtype=dtype, device=device)
        self._free = np.arange(capacity, dtype=np.int64)
        self._rows: dict[bytes, NDArray[np.int64]] = {}  # by digest

    @torch.inference_mode()
    def begin_step(self, step: SchedulerOutput) -> None:
        """Forget and make what `step` says. If it raises, the step's images may be there or not."""
        for digest in step.dropped_images:
            rows = self._rows.pop(digest, None)
            if rows is not None:
                self._free = np.concatenate((self._free, rows))
        if not step.images:
            return
        grids = [(SPATIAL_MERGE_SIZE * i.num_rows, SPATIAL_MERGE_SIZE * i.num_columns) for i in step.images]
        embeddings = self._encode(torch.cat([self._patches(image) for image in step.images]), grids)
        count = len(embeddings)
        rows, self._free = self._free[:count], self._free[count:]
        self._pool[torch.from_numpy(rows).to(self._pool.device)] = embeddings
        ends = np.cumsum([image.num_embeddings for image in step.images])[:-1]
        for image, of_image in zip(step.images, np.split(rows, ends), strict=True):
            self._rows[image.digest] = of_image

    def tokens(self, scheduled: Sequence[ScheduledRequest], begins: Sequence[int]) -> ImageTokens | None:
        """Those of a pass that take an image's embedding; request i's tokens begin at `begins[i]` of the pass."""
        places: list[NDArray[np.int64]] = []
        rows: list[NDArray[np.int64]] = []
        for request, begin in zip(scheduled, begins, strict=True):
            first, end = request.num_computed_tokens, request.num_computed_tokens + len(request.token_ids)
            for image in request.images:
                # Each row of the image ends in a token of its own, which is text to the model.
                within = np.arange(image.num_embeddings, dtype=np.int64)
                positions = image.offset + within + within // image.num_columns
                chosen = (positions >= first) & (positions < end)
                places.append(positions[chosen] - first + begin)
                rows.append(self._rows[image.digest][chosen])
        if not places:
            return None
        device = self._pool.device
        of_pass, of_pool = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in (places, rows))
        return ImageTokens(of_pass, self._pool.index_select(0, of_pool))

    @torch.inference_mode()
    def encode_largest(self) -> None:
        """The largest image, for nothing: kernels are compiled by it, and memory is reserved."""
        side = SPATIAL_MERGE_SIZE * self._largest
        patches = torch.zeros(side * side, PATCH_WIDTH, dtype=self._pool.dtype, device=self._pool.device)
        self._encode(patches, [(side, side)])

    def _patches(self, image: ImageInput) -> Tensor:
        shape = (NUM_CHANNELS, TOKEN_SIZE * image.num_rows, TOKEN_SIZE * image.num_columns)
        # A copy, since PyTorch knows no memory that may only be read.
        pixels = torch.from_numpy(np.frombuffer(image.pixels, "<f4").reshape(shape).copy())
        return patches_of(pixels.to(self._pool.device)).to(self._pool.dtype)
