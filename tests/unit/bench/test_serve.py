"""The measuring client, its sums and its curves, against an application that answers from a script."""

from __future__ import annotations

import asyncio
import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sparkstral.api.app import create_app
from sparkstral.bench.plot import distribution_svg
from sparkstral.bench.serve import Load, Prompts, disturbance, run, summary
from sparkstral.bench.traffic import Answer, TrafficError, ask, connect, percentiles
from sparkstral.cli.bench_load import parse_shape
from sparkstral.config import ServerConfig
from sparkstral.errors import ConfigError
from sparkstral.types import Failure
from tests.support.fake_engine import FakeEngine, written
from tests.support.server import served
from tests.support.tekken import v15_tokenizer


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(lambda request: written(v15_tokenizer(), "one two three four", "</s>"))


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with ExitStack() as stack:
        yield stack.enter_context(served(create_app(engine, v15_tokenizer(), ServerConfig())))


@pytest.mark.parametrize("rate", [None, 40.0])
def test_a_run_counts_what_was_asked_and_what_came(url: str, rate: float | None) -> None:
    load = Load(input_tokens=50, output_tokens=4, clients=2, rate=rate, seconds=0.3, goal_ttft_s=60, goal_itl_s=60)
    document, answers = asyncio.run(run(url, load))
    part = document["parts"]["load"]
    assert part["num_requests"] == len(answers["load"]) > 0
    assert part["num_failed"] == 0
    assert part["num_output_tokens"] == 4 * part["num_requests"]  # the fifth token ends it and is not allowed any more
    assert 40 < part["num_prompt_tokens"] / part["num_requests"] < 80
    assert part["share_within_goals"] == 1.0
    assert 0 < part["ttft_s"]["p50"] <= part["e2e_s"]["p50"] < 60
    assert document["load"]["rate"] == rate


def test_a_disturbed_run_has_a_calm_part_to_compare_with(url: str) -> None:
    load = Load(20, 4, clients=1, seconds=0.2, disturb_tokens=400, disturb_every_s=0.01)
    document, _ = asyncio.run(run(url, load))
    assert set(document["parts"]) == {"calm", "disturbed"}
    found = document["disturbance"]
    assert found["num_long_prompts_begun"] >= found["num_long_prompts_read"] > 0
    assert 300 < found["long_prompt_tokens"]["p50"] < 500
    assert found["itl_ratio"]["p99"] > 0


def test_a_failure_is_an_error_of_its_answer_and_leaving_is_none(url: str, engine: FakeEngine) -> None:
    async def both() -> tuple[Answer, Answer, Answer]:
        async with connect(f"{url}/v1/") as http:
            body = Prompts("mistral-small-4", random.Random(0)).body(20, 10)
            left = await ask(http, body, leave_after=1)
            refused = await ask(http, {**body, "temperature": 9})
            engine.fail_after = (2, Failure("numerics", "Not a number."))
            try:
                return left, refused, await ask(http, body)
            finally:
                engine.fail_after = None

    left, refused, failed = asyncio.run(both())
    assert (left.has_left, left.error) == (True, None)
    assert refused.error is not None
    assert refused.error.startswith("400")
    assert failed.error == "Not a number."
    part = summary([left, refused, failed], Load(), 1.0)
    assert (part["num_requests"], part["num_failed"]) == (3, 2)


def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(TrafficError, match="models"):
        asyncio.run(run("http://127.0.0.1:9", Load()))


def test_percentiles_are_of_the_nearest_rank() -> None:
    found = percentiles([float(i) for i in range(1, 101)])
    assert found == {"mean": 50.5, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
    assert percentiles([3.0]) == {"mean": 3, "p50": 3, "p90": 3, "p95": 3, "p99": 3, "max": 3}
    assert percentiles([]) is None


def test_times_between_tokens_are_compared() -> None:
    parts = {"calm": {"itl_s": {"p50": 0.01, "p99": 0.02}}, "disturbed": {"itl_s": {"p50": 0.02, "p99": 0.05}}}
    assert disturbance(parts, [])["itl_ratio"] == {"p50": 2.0, "p99": 2.5}


@pytest.mark.parametrize("curves", [{}, {"empty": []}, {"one": [0.5]}, {"a<b": [0.001, 0.2, 30.0], "c": [1.0] * 999}])
def test_curves_are_drawn(curves: dict[str, list[float]]) -> None:
    root = ET.fromstring(distribution_svg("Times & more", "s", curves))
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == sum(bool(values) for values in curves.values())


def test_a_shape_is_two_numbers() -> None:
    assert parse_shape("8192/512") == (8192, 512)
    for text in ("8192", "a/b", "0/5", "1/2/3"):
        with pytest.raises(ConfigError, match="--shape"):
            parse_shape(text)
