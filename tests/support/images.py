"""Images as an engine gets them: random pixels, and the tokens of their place in a prompt."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from sparkstral.types import ImageInput

IMAGE, BREAK, END = 10, 12, 13


def image_tokens(num_rows: int, num_columns: int) -> list[int]:
    tokens = ([IMAGE] * num_columns + [BREAK]) * num_rows
    return [*tokens[:-1], END]


def random_image(seed: int, num_rows: int, num_columns: int, offset: int = 0) -> ImageInput:
    shape = (3, 28 * num_rows, 28 * num_columns)
    pixels = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).tobytes()
    return ImageInput(offset, num_rows, num_columns, blake2b(pixels, digest_size=32).digest(), pixels)


def prompt_of(*parts: int | ImageInput) -> tuple[tuple[int, ...], tuple[ImageInput, ...]]:
    """Token ids and images in order → the prompt's token ids, and the images in their places."""
    token_ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, int):
            token_ids.append(part)
            continue
        images.append(ImageInput(len(token_ids), part.num_rows, part.num_columns, part.digest, part.pixels))
        token_ids += image_tokens(part.num_rows, part.num_columns)
    return tuple(token_ids), tuple(images)
