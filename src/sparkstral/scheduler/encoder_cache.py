"""Which images' embeddings the device holds, and which it has to make in the next step.

Owns the choice: what a step's tokens touch is there or is made in that step, least recently used images give way. The
runner keeps the embeddings and does as the step says. Must not know pixels.

Nothing is held for a request from step to step. An image that gave way between two chunks of a prompt is encoded
again: that costs time, and cannot block anybody.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sparkstral.model.config import NUM_CHANNELS, TOKEN_SIZE
from sparkstral.types import GenerationRequest, ImageInput

BYTES_OF_EMBEDDING = 4 * NUM_CHANNELS * TOKEN_SIZE**2  # of an image's pixels


@dataclass(frozen=True, slots=True)
class EncoderLimits:
    """In embeddings, the image tokens of a prompt; both at least those of the largest image."""

    max_encoded: int  # in one step
    capacity: int  # that the device holds


class EncoderCache:
    """For one engine. `begin_step`, `reach` for each request of the step in order, then `encode` and `dropped`."""

    def __init__(self, limits: EncoderLimits) -> None:
        self._limits = limits
        self._held: OrderedDict[bytes, int] = OrderedDict()  # digest → embeddings, the least recently used first
        self._num_held = 0
        self._pinned: set[bytes] = set()  # by this step
        self._num_encoded = 0
        self._encode: list[ImageInput] = []
        self._dropped: list[bytes] = []

    def begin_step(self) -> None:
        self._pinned.clear()
        self._num_encoded = 0
        self._encode = []

    def reach(self, images: tuple[ImageInput, ...], begin: int, end: int) -> int:
        """How far a request may be computed from `begin` on, at most to `end`: up to the first image that the device
        can neither have nor make in this step."""
        for image in images:
            if image.offset < end and image.end > begin and not self._take(image):
                return max(begin, image.offset)
        return end

    def take_step(self) -> tuple[tuple[ImageInput, ...], tuple[bytes, ...]]:
        """Images to encode, and digests to forget before."""
        dropped = tuple(self._dropped)
        self._dropped.clear()
        return tuple(self._encode), dropped

    def forget(self, images: tuple[ImageInput, ...]) -> None:
        """The step that was to encode them failed: whether they are there is not known."""
        for image in images:
            if image.digest in self._held:
                self._drop(image.digest)

    def _take(self, image: ImageInput) -> bool:
        digest, count = image.digest, image.num_embeddings
        if digest in self._held:
            self._held.move_to_end(digest)
            self._pinned.add(digest)
            return True
        if self._num_encoded + count > self._limits.max_encoded or not self._make_room(count):
            return False
        self._held[digest] = count
        self._num_held += count
        self._num_encoded += count
        self._pinned.add(digest)
        self._encode.append(image)
        return True

    def _make_room(self, count: int) -> bool:
        loose = [digest for digest in self._held if digest not in self._pinned]
        room = self._limits.capacity - self._num_held
        if room + sum(self._held[digest] for digest in loose) < count:
            return False
        for digest in loose:
            if self._limits.capacity - self._num_held >= count:
                break
            self._drop(digest)
        return True

    def _drop(self, digest: bytes) -> None:
        self._num_held -= self._held.pop(digest)
        self._dropped.append(digest)


def image_refusal(request: GenerationRequest, limits: EncoderLimits | None) -> str | None:
    """Why a request's images can never be served, or None."""
    end = 0
    for i, image in enumerate(request.images):
        if limits is None:
            return "This model reads no images; send text alone."
        num_bytes = BYTES_OF_EMBEDDING * image.num_embeddings
        if image.num_rows < 1 or image.num_columns < 1 or len(image.pixels) != num_bytes:
            return f"Image {i} has {len(image.pixels):,} bytes of pixels; its size takes {num_bytes:,}."
        if image.offset < end or image.end > len(request.prompt_token_ids):
            return f"Image {i} has tokens {image.offset} to {image.end}: not the prompt's, or not in order."
        if image.num_embeddings > limits.max_encoded:
            return f"Image {i} makes {image.num_embeddings:,} embeddings; the largest makes {limits.max_encoded:,}."
        end = image.end
    return None
