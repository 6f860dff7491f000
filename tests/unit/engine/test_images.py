"""Images through a whole engine: however the prompt is cut, cached, preempted and shared, the answer is the same.

Answers are compared by the log probabilities of each token and of what else was likely, which show what equal tokens
would hide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkstral.config import EngineConfig
from sparkstral.memory import vision_workspace
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.types import EngineInfo, GenerationRequest, ImageInput, SamplingParams
from tests.support.answers import Answers
from tests.support.images import prompt_of, random_image
from tests.support.tiny_engine import tiny_config, write_tiny_model

PARAMS = SamplingParams(max_tokens=6, temperature=0, stop_token_ids=(), num_logprobs=5)
LARGE, WIDE, SMALL = random_image(1, 5, 5), random_image(2, 2, 4), random_image(3, 1, 1)
ROUNDING = 2e-4  # of a product whose inner order depends on its number of rows


def request(request_id: str, *parts: int | ImageInput, max_tokens: int = 6) -> GenerationRequest:
    token_ids, images = prompt_of(*parts)
    return GenerationRequest(request_id, token_ids, replace(PARAMS, max_tokens=max_tokens), images=images)


TWO_IMAGES = request("two", 1, 50, 51, LARGE, 60, 61, 62, WIDE, 70)


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=ROUNDING)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), with_vision=True)
    return replace(tiny_config(folder), max_num_seqs=4, max_slowdown=None)


@pytest.fixture(scope="module")
def expected(config: EngineConfig) -> torch.Tensor:
    """The answer to TWO_IMAGES, whose prompt is computed in one step."""
    return Answers(config, [TWO_IMAGES]).numbers("two")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The digests of all images that are encoded from now on."""
    digests: list[bytes] = []
    begin_step = EncoderCache.begin_step

    def noted(self: EncoderCache, step) -> None:
        digests.extend(image.digest for image in step.images)
        begin_step(self, step)

    monkeypatch.setattr(EncoderCache, "begin_step", noted)
    return digests


def test_the_image_is_seen(config: EngineConfig, expected: torch.Tensor) -> None:
    other = request("other", 1, 50, 51, random_image(9, 5, 5), 60, 61, 62, WIDE, 70)
    numbers = Answers(config, [other]).numbers("other")
    assert float((numbers - expected).abs().max()) > 0.01


@pytest.mark.parametrize("num_tokens", [5, 7, 31])
def test_a_prompt_that_is_cut_inside_its_images_is_answered_alike(
    config: EngineConfig, expected: torch.Tensor, num_tokens: int
) -> None:
    chunked = replace(config, max_num_batched_tokens=num_tokens)
    assert_same(Answers(chunked, [TWO_IMAGES]).numbers("two"), expected)


def test_one_token_at_a_time(config: EngineConfig, expected: torch.Tensor) -> None:
    single = replace(config, max_num_batched_tokens=2, max_num_seqs=1)
    assert_same(Answers(single, [TWO_IMAGES]).numbers("two"), expected)


def test_what_the_cache_has_of_an_image_is_not_computed_again(
    config: EngineConfig, expected: torch.Tensor, encoded: list[bytes]
) -> None:
    answers = Answers(config, [TWO_IMAGES], [replace(TWO_IMAGES, request_id="again")])
    assert answers.last("again").num_cached_tokens == 32  # the prefix ends within the first image: blocks have 16
    assert_same(answers.numbers("again"), expected)
    assert encoded == [LARGE.digest, WIDE.digest]


def test_another_image_in_the_same_place_is_no_hit(config: EngineConfig, expected: torch.Tensor) -> None:
    other = request("other", 1, 50, 51, random_image(9, 5, 5), 60, 61, 62, WIDE, 70)
    answers = Answers(config, [other], [TWO_IMAGES])
    assert answers.last("two").num_cached_tokens == 0
    assert_same(answers.numbers("two"), expected)


def test_text_before_an_image_is_shared_with_other_images(config: EngineConfig) -> None:
    text = tuple(range(50, 83))
    first, second = (request(name, *text, random_image(seed, 2, 2)) for name, seed in (("first", 5), ("second", 6)))
    answers = Answers(config, [first], [second])
    assert answers.last("second").num_cached_tokens == 32


def test_requests_that_come_together_share_an_image_and_a_batch(
    config: EngineConfig, expected: torch.Tensor, encoded: list[bytes]
) -> None:
    others = [request("b", 1, WIDE, 90, SMALL), request("c", 1, 44, 45, LARGE, 91), request("d", 1, 95, 96)]
    alone = {each.request_id: Answers(config, [each]).numbers(each.request_id) for each in others}
    encoded.clear()
    together = Answers(config, [TWO_IMAGES, *others])
    assert sorted(encoded) == sorted([LARGE.digest, WIDE.digest, SMALL.digest])
    assert_same(together.numbers("two"), expected)
    for name, numbers in alone.items():
        assert_same(together.numbers(name), numbers)


def test_a_device_that_holds_one_image_alone_serves_many(
    config: EngineConfig, expected: torch.Tensor, encoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision_workspace, "IMAGES_KEPT", 1)
    others = [request(str(i), 1, 40 + i, random_image(20 + i, 5, 5), 50, LARGE) for i in range(3)]
    answers = Answers(replace(config, max_num_batched_tokens=40), [*others, TWO_IMAGES])
    assert_same(answers.numbers("two"), expected)
    assert {name: len(answers.numbers(name)) for name in "012"} == dict.fromkeys("012", 6)
    assert len(encoded) > len(set(encoded))


def test_a_preempted_request_goes_on_as_if_it_had_not_been(config: EngineConfig) -> None:
    def talk(name: str) -> GenerationRequest:
        return request(name, 1, ord(name), LARGE, 60, WIDE, 70, max_tokens=60)

    whole = {name: Answers(config, [talk(name)]).numbers(name) for name in "abc"}
    tight = replace(config, max_model_len=128, kv_memory_bytes=14 * 2 * 16 * 320 * 4)
    answers = Answers(tight, [talk(name) for name in "abc"])
    assert answers.stats.num_preemptions > 0
    for name, numbers in whole.items():
        assert_same(answers.numbers(name), numbers)


def test_an_encoder_that_fails_costs_the_requests_of_its_step(
    config: EngineConfig, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncoderCache, "tokens", failing_once(EncoderCache.tokens))
    answers = Answers(config, [TWO_IMAGES], [replace(TWO_IMAGES, request_id="again")])
    failure = answers.last("two").failure
    assert failure is not None
    assert failure.code == "internal"
    assert_same(answers.numbers("again"), expected)


def failing_once(function: Callable) -> Callable:
    is_first = True

    def wrapped(*arguments):
        nonlocal is_first
        if is_first:
            is_first = False
            raise RuntimeError("out of memory")
        return function(*arguments)

    return wrapped


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pixels": LARGE.pixels[:-4]}, "Image 0 has 235,196 bytes of pixels; its size takes 235,200."),
        ({"offset": 20}, "not the prompt's, or not in order"),
        ({"num_rows": 0}, "Image 0 has 235,200 bytes of pixels; its size takes 0."),
    ],
)
def test_an_image_that_does_not_fit_its_prompt_is_refused(
    config: EngineConfig, changed: dict[str, object], reason: str
) -> None:
    token_ids, (image,) = prompt_of(1, LARGE, 2)
    bad = GenerationRequest("bad", token_ids, PARAMS, images=(replace(image, **changed),))  # type: ignore[arg-type]
    failure = Answers(config, [bad]).last("bad").failure
    assert failure is not None
    assert reason in failure.message


def test_an_image_larger_than_the_largest_is_refused(config: EngineConfig) -> None:
    failure = Answers(config, [request("bad", 1, random_image(0, 6, 6))]).last("bad").failure
    assert failure is not None
    assert failure.message == "Image 0 makes 36 embeddings; the largest makes 25."


@pytest.mark.parametrize(("has_tower", "reason"), [(True, "--no-vision"), (False, "no vision encoder")])
def test_an_engine_without_a_tower_says_why_and_refuses(tmp_path: Path, has_tower: bool, reason: str) -> None:
    folder = write_tiny_model(tmp_path, with_vision=has_tower)
    answers = Answers(replace(tiny_config(folder), reads_images=not has_tower), [TWO_IMAGES])
    info: EngineInfo = answers.info
    assert not info.reads_images
    assert reason in info.why_blind
    failure = answers.last("two").failure
    assert failure is not None
    assert failure.message == "This model reads no images; send text alone."
