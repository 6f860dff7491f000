"""The soak finds what it is there to find: wrong, mixed and lost answers, and what is left behind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from sparkstral.api.app import create_app
from sparkstral.bench.soak import SoakLoad, Tally, floor, judge, slope, soak
from sparkstral.bench.traffic import TrafficError
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from sparkstral.types import GenerationRequest
from tests.support.fake_engine import FakeEngine, written
from tests.support.server import served
from tests.support.tekken import v15_tokenizer

LOAD = SoakLoad(minutes=0.01, clients=4, abort_share=0.3, pool=30, max_input_tokens=60)
Mangle = Callable[[str, int], str]  # a right answer and how many requests came before -> what is answered


def tokenizer() -> ChatTokenizer:
    return v15_tokenizer()


def good_engine(mangle: Mangle = lambda text, _: text) -> FakeEngine:
    """Knows the answers of the pool."""

    def answer(request: GenerationRequest) -> list[int]:
        plain = [t for t in request.prompt_token_ids if not tokenizer().is_control(t)]
        asked = b"".join(map(tokenizer().token_bytes, plain)).decode()
        number = re.search(r"Repeat exactly: (.*)", asked) or re.search(r"pass key is (\d{5})", asked)
        text = number[1].strip() if number else "no tool"
        return written(tokenizer(), mangle(text, len(engine.requests)), "</s>")

    engine = FakeEngine(answer)
    return engine


def run(engine: FakeEngine) -> dict[str, object]:
    with served(create_app(engine, tokenizer(), ServerConfig())) as url:
        return asyncio.run(soak(url, LOAD))


def test_a_good_server_passes() -> None:
    document = run(good_engine())
    assert document["verdict"] == "ok", document["broken"]
    outcomes = document["outcomes"]
    assert isinstance(outcomes, dict)
    assert set(outcomes) == {"right", "left"}
    assert document["faults"] == []


def test_answers_that_change_under_load_or_are_anothers_are_found() -> None:
    seen: list[str] = []

    def mangle(text: str, number: int) -> str:
        seen.append(text)
        if number > 40 and number % 5 == 0:
            return seen[number % 20]
        return text + "!" if number > 40 and number % 7 == 0 else text

    document = run(good_engine(mangle))
    assert document["verdict"] == "failed"
    outcomes = document["outcomes"]
    assert isinstance(outcomes, dict)
    assert outcomes["mixed"] > 0
    assert outcomes["wrong"] > 0


def test_a_model_that_knows_nothing_cannot_be_judged_by() -> None:
    with pytest.raises(TrafficError, match="rightly"):
        run(good_engine(lambda text, number: "Hello!"))


def test_what_is_left_behind_is_found() -> None:
    tally = Tally()
    tally.outcomes["right"] = 10
    tally.kinds["repeat"] = 10
    tally.memory = [(i / 10, 100 + 3 * (i // 5 / 2) + 50 * (i % 5 != 2)) for i in range(100)]  # 3 MiB a minute
    before, after = {"ended": 0.0}, {"ended": 10.0, "sparkstral_kv_cache_usage_ratio": 0.25}
    broken = judge(tally, before, after, SoakLoad(minutes=10))
    assert broken == ["0.25 of the KV blocks are held after the end", "memory grows by 3.0 MiB a minute"]
    assert judge(tally, before, {"ended": 9.0}, SoakLoad(minutes=1)) == ["the server counts 9 ends of 10 requests"]


def test_what_a_step_takes_for_a_moment_is_no_growth() -> None:
    memory = [(i / 20, 100 + (50 + i) * (i % 7 != 0)) for i in range(200)]
    assert slope(floor(memory)) == pytest.approx(0.0)


def test_the_slope_is_that_of_the_line() -> None:
    assert slope([(0.0, 5.0), (1.0, 7.0), (2.0, 9.0)]) == pytest.approx(2.0)
    assert slope([(0.0, 1.0), (1.0, 2.0)]) is None
