"""Which images a step encodes, and which give way."""

from __future__ import annotations

from sparkstral.scheduler.encoder_cache import EncoderCache, EncoderLimits
from sparkstral.types import ImageInput

A, B, C, D = (ImageInput(10 * i, 2, 2, bytes([i]), b"") for i in range(1, 5))  # 4 embeddings, 6 tokens each


def step(cache: EncoderCache, *images: ImageInput, end: int = 100) -> tuple[int, str, str]:
    """One request with `images` from the beginning to `end`: how far it gets, what is encoded and dropped."""
    cache.begin_step()
    reached = cache.reach(images, 0, end)
    encoded, dropped = cache.take_step()
    names = {image.digest: name for name, image in zip("abcd", (A, B, C, D), strict=True)}
    return reached, "".join(names[i.digest] for i in encoded), "".join(names[digest] for digest in dropped)


def test_an_image_is_encoded_once() -> None:
    cache = EncoderCache(EncoderLimits(8, 16))
    assert step(cache, A) == (100, "a", "")
    assert step(cache, A, B) == (100, "b", "")
    assert step(cache, A, A, B) == (100, "", "")


def test_images_that_the_tokens_do_not_touch_are_left_for_later() -> None:
    cache = EncoderCache(EncoderLimits(8, 16))
    assert step(cache, A, B, end=20) == (20, "a", "")
    assert step(cache, A, B, end=21) == (21, "b", "")
    cache.begin_step()
    assert cache.reach((A, B, C), 16, 30) == 30
    assert cache.take_step() == ((), ())


def test_a_step_encodes_no_more_than_it_may() -> None:
    cache = EncoderCache(EncoderLimits(8, 16))
    assert step(cache, A, B, C) == (C.offset, "ab", "")
    assert step(cache, A, B, C) == (100, "c", "")


def test_the_least_recently_used_image_gives_way() -> None:
    cache = EncoderCache(EncoderLimits(8, 8))
    step(cache, A)
    step(cache, B)
    step(cache, A)
    assert step(cache, C) == (100, "c", "b")
    assert step(cache, B) == (100, "b", "a")


def test_what_a_step_needs_does_not_give_way_in_it() -> None:
    cache = EncoderCache(EncoderLimits(8, 8))
    assert step(cache, A, B, C) == (C.offset, "ab", "")
    assert step(cache, A, B, C) == (C.offset, "", "")


def test_a_request_within_an_image_that_cannot_be_had_waits() -> None:
    cache = EncoderCache(EncoderLimits(4, 4))
    cache.begin_step()
    assert cache.reach((A,), 0, 100) == 100
    assert cache.reach((B,), B.offset + 2, 100) == B.offset + 2


def test_after_a_failure_the_image_is_dropped_and_encoded_again() -> None:
    cache = EncoderCache(EncoderLimits(8, 8))
    step(cache, A)
    cache.forget((A,))
    assert step(cache, A) == (100, "a", "a")
