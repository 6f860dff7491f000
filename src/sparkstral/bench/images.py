"""How long the vision encoder takes, through the engine's own API: rows of `bench engine --images`.

Method: a prompt with new images, then the same with another first token: its prefix is not in the cache, its images'
embeddings are, so that the difference of the two is what encoding takes, the pixels' way to the device included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np

from sparkstral.bench.engine_under_test import EngineUnderTest
from sparkstral.errors import ConfigError, SparkstralError
from sparkstral.model.config import (
    IMAGE_BREAK_TOKEN_ID,
    IMAGE_END_TOKEN_ID,
    IMAGE_TOKEN_ID,
    NUM_CHANNELS,
    TOKEN_SIZE,
    ModelConfig,
)
from sparkstral.types import ImageInput

CASES = {"image of 1540 x 1540": (1, 1540), "8 images of 512 x 512": (8, 512)}  # how many, pixels a side


def image_cases(config: ModelConfig) -> dict[str, list[tuple[int, int]]]:
    """By name, the rows and columns of embeddings of each image; a smaller encoder gets its largest."""
    if config.vision is None:
        raise ConfigError("This model has no vision encoder: leave --images out.")
    found = {}
    for name, (count, side) in CASES.items():
        tokens = -(-min(side, config.vision.max_image_size) // TOKEN_SIZE)
        count = max(1, min(count, config.vision.max_image_tokens // tokens**2))
        found[name] = [(tokens, tokens)] * count
    return found


def encoding_times(grids: Sequence[tuple[int, int]], repeats: int) -> Callable[[EngineUnderTest], list[float]]:
    """Milliseconds of `repeats` batches."""
    random = np.random.default_rng(0)

    def elapsed(engine: EngineUnderTest, first: int, images: tuple[ImageInput, ...]) -> float:
        token_ids = [first]
        for image in images:
            row = [IMAGE_TOKEN_ID] * image.num_columns
            token_ids += [*([*row, IMAGE_BREAK_TOKEN_ID] * image.num_rows)[:-1], IMAGE_END_TOKEN_ID]
        begin, (result,) = engine.run([[*token_ids, 1]], 1, images)
        if result.num_cached_tokens:
            raise SparkstralError(f"{result.num_cached_tokens} tokens of a new prompt came from the prefix cache.")
        return result.times[-1] - begin

    def measure(engine: EngineUnderTest) -> list[float]:
        times = []
        for number in range(repeats + 1):
            images, offset = [], 1
            for rows, columns in grids:
                shape = (NUM_CHANNELS, TOKEN_SIZE * rows, TOKEN_SIZE * columns)
                pixels = random.standard_normal(shape, dtype=np.float32).tobytes()
                images.append(ImageInput(offset, rows, columns, blake2b(pixels, digest_size=32).digest(), pixels))
                offset = images[-1].end
            new, known = (elapsed(engine, 2 * number + 20 + i, tuple(images)) for i in range(2))
            times.append((new - known) * 1e3)
        return times[1:]  # the first warms

    return measure
