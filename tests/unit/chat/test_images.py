"""Awkward images: sizes, layout and pixel values are those of mistral-common, or the refusal names the field."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from mistral_common.protocol.instruct.chunk import ImageChunk
from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs
from PIL import Image

from sparkstral.chat.images import MAX_BYTES, ImageReader, PreparedImage
from sparkstral.chat.render import RenderedPrompt, render
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ChatRequest, ImagePart, Part, TextPart, ToolCall
from tests.support.messages import says

ENCODER = ImageEncoder(ImageConfig(14, 1540, 2), SpecialImageIDs(10, 12, 13))
READER = ImageReader(ENCODER)


def noise(mode: str, size: tuple[int, int]) -> Image.Image:
    """Not smooth, so that any other way of scaling shows."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    random = np.random.default_rng(sum(size))
    values = random.integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    return Image.frombytes(mode, size, values.tobytes())


def saved(image: Image.Image, kind: str = "PNG", **more: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def palette() -> bytes:
    image = noise("RGB", (70, 41)).quantize(17)
    return saved(image, transparency=3)


def sixteen_bits() -> bytes:
    ramp = np.linspace(0, 65535, 64 * 48, dtype=np.uint16).reshape(48, 64)
    return saved(Image.fromarray(ramp))


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by a quarter to show it
    return saved(noise("RGB", (90, 33)), "JPEG", exif=exif)


def animated() -> bytes:
    frames = [noise("RGB", (50 + i, 30)).resize((50, 30)).quantize(30) for i in range(3)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


# Name → the file, rows and columns of tokens.
TABLE: dict[str, tuple[Callable[[], bytes], int, int]] = {
    "1 x 1": (lambda: saved(noise("RGB", (1, 1))), 1, 1),
    "28 x 29": (lambda: saved(noise("RGB", (28, 29))), 2, 1),
    "100 x 60": (lambda: saved(noise("RGB", (100, 60))), 3, 4),
    "640 x 480": (lambda: saved(noise("RGB", (640, 480))), 18, 23),
    "4000 x 10": (lambda: saved(noise("RGB", (4000, 10))), 1, 55),
    "10 x 4000": (lambda: saved(noise("RGB", (10, 4000))), 55, 1),
    "3080 x 2000": (lambda: saved(noise("RGB", (3080, 2000)), "BMP"), 36, 55),
    "largest": (lambda: saved(noise("RGB", (1540, 1540)), "BMP"), 55, 55),
    "palette, a colour transparent": (palette, 2, 3),
    "RGBA": (lambda: saved(noise("RGBA", (61, 57))), 3, 3),
    "gray and alpha": (lambda: saved(noise("LA", (31, 57))), 3, 2),
    "grayscale": (lambda: saved(noise("L", (57, 31))), 2, 3),
    "black and white": (lambda: saved(noise("L", (57, 31)).convert("1")), 2, 3),
    "CMYK": (lambda: saved(noise("CMYK", (64, 64)), "JPEG"), 3, 3),
    "16 bits": (sixteen_bits, 2, 3),
    "to be turned (EXIF)": (rotated, 2, 4),
    "animated GIF": (animated, 2, 2),
    "WebP": (lambda: saved(noise("RGBA", (77, 99)), "WEBP", lossless=True), 4, 3),
    "AVIF": (lambda: saved(noise("RGB", (64, 40)), "AVIF"), 2, 3),
    "TIFF": (lambda: saved(noise("RGB", (64, 40)), "TIFF", compression="tiff_lzw"), 2, 3),
}


@pytest.mark.parametrize("name", TABLE)
def test_size_layout_and_pixels_are_mistral_commons(name: str, tokenizer: ChatTokenizer) -> None:
    make, num_rows, num_columns = TABLE[name]
    data = make()
    with Image.open(io.BytesIO(data)) as image:
        theirs = ENCODER(ImageChunk(image=image))
    prompt = rendered(tokenizer, ImagePart("here", data)).prompt
    (ours,) = prompt.images
    assert (ours.num_rows, ours.num_columns) == (num_rows, num_columns)
    assert list(prompt.token_ids[ours.offset : ours.end]) == theirs.tokens
    pixels = np.frombuffer(ours.pixels, np.float32).reshape(3, 28 * num_rows, 28 * num_columns)
    assert np.array_equal(pixels, theirs.image)


def rendered(tokenizer: ChatTokenizer, *parts: Part) -> RenderedPrompt:
    return render(ChatRequest((ChatMessage("user", parts),)), tokenizer)


RED, BLUE = (saved(Image.new("RGB", size, colour)) for size, colour in (((28, 56), "red"), ((56, 28), "blue")))
OF_RED, OF_BLUE = [10, 12, 10, 13], [10, 10, 13]


def test_images_stand_where_they_are_in_the_text(tokenizer: ChatTokenizer) -> None:
    parts = (TextPart("a"), ImagePart("0", RED), TextPart("b"), ImagePart("1", BLUE), TextPart("c"))
    prompt = rendered(tokenizer, *parts).prompt
    texts = [tokenizer.encode(text) for text in "abc"]
    assert list(prompt.token_ids[-11:]) == [*texts[0], *OF_RED, *texts[1], *OF_BLUE, *texts[2], 4]
    assert [image.digest for image in prompt.images] == [READER.prepare(data, "").digest for data in (RED, BLUE)]
    for image, tokens in zip(prompt.images, (OF_RED, OF_BLUE), strict=True):
        assert list(prompt.token_ids[image.offset : image.end]) == tokens


def test_an_image_after_its_text_is_put_before_it(tokenizer: ChatTokenizer) -> None:
    prompt = rendered(tokenizer, TextPart("a"), ImagePart("0", RED)).prompt
    assert list(prompt.token_ids[-6:]) == [*OF_RED, *tokenizer.encode("a"), 4]


def test_images_of_several_turns_and_of_a_tools_result(tokenizer: ChatTokenizer) -> None:
    messages = (
        ChatMessage("user", (ImagePart("0", RED),)),
        ChatMessage("assistant", (), (ToolCall("a", "look", "{}"),)),
        ChatMessage("tool", (TextPart("seen"), ImagePart("1", BLUE), ImagePart("2", RED)), tool_call_id="a"),
    )
    prompt = render(ChatRequest(messages), tokenizer).prompt
    found = [prompt.token_ids[image.offset : image.end] for image in prompt.images]
    assert [list(tokens) for tokens in found] == [OF_RED, OF_BLUE, OF_RED]
    assert prompt.images[0].digest == prompt.images[2].digest != prompt.images[1].digest


def test_text_that_spells_an_image_is_none(tokenizer: ChatTokenizer) -> None:
    prompt = rendered(tokenizer, TextPart("[IMG][IMG_END]"), ImagePart("0", RED)).prompt
    assert prompt.token_ids.count(10) == 2
    assert prompt.token_ids[prompt.images[0].offset] == 10


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_users_and_tools_show_images(role: str, tokenizer: ChatTokenizer) -> None:
    image = ImagePart("messages[1].content[0]", RED)
    messages = (ChatMessage("user", (TextPart("a"),)), ChatMessage(role, (image,)))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=says("`messages[1].content[0]` is an image; only a user's message")):
        render(ChatRequest(messages), tokenizer)


def test_too_many_images_name_the_first_that_is_too_many(tokenizer: ChatTokenizer) -> None:
    parts = tuple(ImagePart(f"content[{i}]", RED) for i in range(3))
    request = ChatRequest((ChatMessage("user", parts),))
    assert len(render(request, tokenizer, max_images=3).prompt.images) == 3
    with pytest.raises(RequestError, match=says("3 images; this server reads 2", "--max-images")) as caught:
        render(request, tokenizer, max_images=2)
    assert caught.value.param == "content[2]"


def bomb(side: int) -> bytes:
    """A PNG that says it is `side` pixels each way, and is a few hundred bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no image that this server reads (PNG, JPEG"),
        (b"GIF89a", "no image that this server reads"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image that this server reads"),
        (b"%PDF-1.7", "no image that this server reads"),
        (RED[:-20], "damaged"),
        (saved(noise("RGB", (99, 99)), "JPEG")[:1500], "damaged"),
        (b"\0" * (MAX_BYTES + 1), "20.00 MiB"),
        (bomb(8000), "8,000 x 8,000 pixels; this server reads up to 50,000,000"),
        (bomb(60_000), "far too many pixels"),
    ],
    ids=["empty", "gif", "svg", "pdf", "short png", "short jpeg", "large", "bomb", "large bomb"],
)
def test_a_file_that_cannot_be_read_names_its_field(data: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=says("`messages[0].content[3]`", reason)) as caught:
        READER.prepare(data, "messages[0].content[3]")
    assert caught.value.param == "messages[0].content[3]"


def test_equal_pixels_have_equal_digests_and_other_shapes_others() -> None:
    def of(size: tuple[int, int], kind: str = "PNG") -> PreparedImage:
        return READER.prepare(saved(Image.new("RGB", size, "white"), kind), "")

    assert of((28, 56)).digest == of((28, 56), "BMP").digest
    assert of((28, 56)).pixels == of((56, 28)).pixels
    assert of((28, 56)).digest != of((56, 28)).digest
