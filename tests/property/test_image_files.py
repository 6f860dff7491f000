"""2,000 damaged image files of eight formats: each is an image or a refusal that names its place, in bounded memory."""

from __future__ import annotations

import io
import random
import resource

import numpy as np
import pytest
from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs
from PIL import Image

from sparkstral.chat.images import ImageReader
from sparkstral.errors import RequestError

FORMATS = {
    "PNG": {}, "JPEG": {"quality": 80}, "WEBP": {"lossless": True}, "GIF": {}, "BMP": {},
    "TIFF": {"compression": "tiff_lzw"}, "AVIF": {"speed": 10}, "PPM": {},
}  # fmt: skip
NUM_FILES = 250  # of each format
# A damaged header may speak of any size; what may be decoded is bounded, here more tightly so that it takes seconds.
MAX_PIXELS = 250_000
MAX_GROWTH_BYTES = 200 << 20
READER = ImageReader(ImageEncoder(ImageConfig(14, 1540, 2), SpecialImageIDs(10, 12, 13)), MAX_PIXELS)


def whole(kind: str) -> bytes:
    values = np.random.default_rng(7).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values // 8 * 8).save(file, kind, **FORMATS[kind])
    return file.getvalue()


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes changed (mostly in the head), a piece cut out, doubled or zeroed, or the end cut off."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        begin = draw.randrange(min(64, len(out))) if draw.random() < 0.6 else draw.randrange(len(out))
        length = draw.randrange(1, 32)
        match draw.randrange(6):
            case 0 | 1:
                out[begin] = draw.randrange(256)
            case 2:
                out[begin : begin + length] = draw.randbytes(length)
            case 3:
                del out[begin : begin + length]
            case 4:
                out[begin:begin] = out[begin : begin + length] * draw.randrange(1, 4)
            case 5:
                out = out[: max(1, draw.randrange(len(out)))] if draw.random() < 0.3 else out
                out[begin : begin + 4] = draw.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"))
        out = out or bytearray(b"\0")
    return bytes(out)


@pytest.mark.filterwarnings("ignore")  # of Pillow, about what it reads all the same
@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_file_is_an_image_or_a_refusal(kind: str) -> None:
    data, draw = whole(kind), random.Random(kind)
    assert READER.prepare(data, "here").num_columns == 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_refused = 0
    for _ in range(NUM_FILES):
        try:
            image = READER.prepare(damaged(data, draw), "here")
        except RequestError as refusal:
            num_refused += refusal.param == "here"
        else:
            assert len(image.pixels) == 4 * 3 * 28 * 28 * image.num_rows * image.num_columns
    assert num_refused > NUM_FILES // 20
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MAX_GROWTH_BYTES
