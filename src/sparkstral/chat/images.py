"""The bytes of an image's file → the pixels that the vision encoder reads, or an error that names the client's field.

Owns which files are read and how large they may be. Decoding, scaling and normalising are mistral-common's (Pillow and
OpenCV), which is how the model was trained; like there, an EXIF orientation changes nothing. Must not know where the
bytes come from.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from mistral_common.protocol.instruct.chunk import ImageChunk, ImageURLChunk
from mistral_common.tokens.tokenizers.image import ImageEncoder, ImageEncoding, SpecialImageIDs
from PIL import Image

from sparkstral.errors import RequestError
from sparkstral.model.config import TOKEN_SIZE
from sparkstral.types import ImageInput
from sparkstral.units import format_bytes

# What clients send, and no more: each decoder is a way in.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
MAX_BYTES = 20 << 20  # of a file: what OpenAI takes, and base64 of it fits the largest body
MAX_PIXELS = 50_000_000  # of the best phones; decoded they are 0.8 GB for a moment
_SHOWN = "PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF, PPM"


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """`pixels` and `digest` as in types.ImageInput; rows and columns of embeddings."""

    num_rows: int
    num_columns: int
    digest: bytes
    pixels: bytes = field(repr=False)


class ImageReader:
    """Prepares one image after the other, whoever asks: each takes memory. For any thread."""

    def __init__(self, encoder: ImageEncoder, max_pixels: int = MAX_PIXELS) -> None:
        """`encoder` is of the tokenizer, whose file tells the largest size."""
        self._encoder = encoder
        self._max_pixels = max_pixels
        self._turn = threading.Lock()

    def prepare(self, data: bytes, place: str) -> PreparedImage:
        """Raises RequestError, naming `place`, for what is no image, is damaged, or is too large."""
        if len(data) > MAX_BYTES:
            raise RequestError(
                f"`{place}` is an image of {format_bytes(len(data))}; this server reads up to "
                f"{format_bytes(MAX_BYTES)}. Send a smaller one.",
                place,
            )
        with self._turn:
            try:
                image = Image.open(io.BytesIO(data), formats=FORMATS)
            except Image.DecompressionBombError:
                raise self._too_many_pixels(place, "far too many") from None
            except Exception as error:  # decoders raise what they like
                raise RequestError(
                    f"`{place}` is no image that this server reads ({_SHOWN}), or its file is damaged.", place
                ) from error
            with image:
                width, height = image.size
                if width * height > self._max_pixels:
                    raise self._too_many_pixels(place, f"{width:,} x {height:,}")
                try:
                    pixels = self._encoder(ImageChunk(image=image)).image  # float32 [3, height, width]
                except Exception as error:
                    sentence = f"`{place}` is a damaged image: its file ends early or is broken."
                    raise RequestError(sentence, place) from error
        num_rows, num_columns = pixels.shape[1] // TOKEN_SIZE, pixels.shape[2] // TOKEN_SIZE
        content = pixels.astype("<f4", copy=False).tobytes()
        digest = blake2b(content, digest_size=32, salt=bytes((num_rows, num_columns))).digest()
        return PreparedImage(num_rows, num_columns, digest, content)

    def _too_many_pixels(self, place: str, found: str) -> RequestError:
        return RequestError(
            f"`{place}` is an image of {found} pixels; this server reads up to {self._max_pixels:,} of them. "
            "Send a smaller one.",
            place,
        )


class ImagePlaces:
    """What a prompt gets in an image's place, for mistral-common to put where its own encoder's tokens would stand.

    The tokenizer is shared by all requests, so a chunk carries all that there is to know, and no request's state."""

    def __init__(self, ids: SpecialImageIDs) -> None:
        self._ids = ids

    @staticmethod
    def chunk(number: int, image: PreparedImage) -> ImageURLChunk:
        """Stands for the image with this number among a request's."""
        return ImageURLChunk(image_url=f"{number} {image.num_rows} {image.num_columns}")

    def __call__(self, chunk: ImageURLChunk) -> ImageEncoding:
        number, num_rows, num_columns = map(int, chunk.get_url().split())
        tokens = ([self._ids.img] * num_columns + [self._ids.img_break]) * num_rows
        tokens[-1] = self._ids.img_end
        return ImageEncoding(tokens, np.array(number))

    def find(self, token_ids: Sequence[int], images: Sequence[PreparedImage]) -> tuple[ImageInput, ...]:
        """Where each of `images`, in the order of their tokens, stands. Text never has an image's token."""
        found = []
        end = 0
        for image in images:
            offset = token_ids.index(self._ids.img, end)
            placed = ImageInput(offset, image.num_rows, image.num_columns, image.digest, image.pixels)
            end = placed.end
            found.append(placed)
        return tuple(found)
