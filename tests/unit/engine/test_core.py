"""The step loop with the real scheduler, cache books and runner, over a model whose tokens tell what it
saw."""

from __future__ import annotations

import threading

import pytest
import torch

from sparkstral.engine import core as core_module
from sparkstral.engine.messages import Abort, Outputs, ShrinkCaches, Shutdown, Submit
from sparkstral.errors import SparkstralError
from sparkstral.runner.model_runner import DeviceError
from sparkstral.structured import compiler
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.types import FinishReason
from tests.support.context_model import ContextModel, greedy_continuation
from tests.support.core_bench import TOKENIZER, Engine, request


def test_greedy_equals_the_reference_in_a_full_house():
    prompts = {f"r{i}": [i + 1, *range(2, 2 + 3 * i)] for i in range(8)}
    engine = Engine()
    answers = engine.serve(
        *(request(name, prompt, max_tokens=10 + i) for i, (name, prompt) in enumerate(prompts.items()))
    )
    for i, (name, prompt) in enumerate(prompts.items()):
        assert answers[name] == greedy_continuation(prompt, 10 + i)
        assert engine.last(name).finish_reason is FinishReason.LENGTH
        assert engine.last(name).num_prompt_tokens == len(prompt)
    engine.assert_all_blocks_are_free()


def test_a_prompt_in_chunks_gives_the_same_as_in_one():
    prompt = [(7 * i) % 300 for i in range(100)]
    engine = Engine(max_num_batched_tokens=9)
    assert engine.serve(request("r", prompt))["r"] == greedy_continuation(prompt, 8)
    assert len(engine.model.num_tokens_per_pass) > 10


def test_a_stop_token_ends_the_request_and_is_its_last_token():
    reference = greedy_continuation([5, 6], 4)
    engine = Engine()
    assert engine.serve(request("r", [5, 6], stop=(reference[2],)))["r"] == reference[:3]
    assert engine.last("r").finish_reason is FinishReason.STOP


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_preempted_and_resumed_equals_uninterrupted(temperature: float):
    requests = [request(f"r{i}", [i + 1, 9, 9], max_tokens=20, temperature=temperature) for i in range(4)]
    tight, wide = Engine(num_blocks=10), Engine(num_blocks=64)
    assert tight.serve(*requests) == wide.serve(*requests)
    assert tight.stats[-1].num_preemptions > 0
    assert wide.stats[-1].num_preemptions == 0
    tight.assert_all_blocks_are_free()


def test_a_shared_prefix_is_computed_once_and_changes_nothing():
    prompt = list(range(1, 30))
    engine = Engine()
    engine.serve(request("first", prompt))
    assert engine.last("first").num_cached_tokens == 0
    answer = engine.serve(request("second", [*prompt[:20], 3, 3]))["second"]
    assert engine.last("second").num_cached_tokens == 20
    assert answer == greedy_continuation([*prompt[:20], 3, 3], 8)


def test_when_memory_is_short_nothing_is_found_in_the_cache_any_more():
    prompt = list(range(1, 30))
    engine = Engine()
    engine.serve(request("first", prompt))
    engine.put(ShrinkCaches())
    answer = engine.serve(request("second", prompt))["second"]
    assert engine.last("second").num_cached_tokens == 0
    assert answer == greedy_continuation(prompt, 8)


def test_an_abort_ends_the_request_and_frees_its_blocks():
    engine = Engine()

    def abort_after_three(message: Outputs) -> None:
        if len(engine.outputs.get("long", ())) == 3:
            engine.put(Abort("long"), Abort("never seen"))

    engine.on_outputs = abort_after_three
    answers = engine.serve(request("long", [1, 2], max_tokens=200), request("short", [3], max_tokens=6))
    assert engine.last("long").finish_reason is FinishReason.ABORTED
    assert answers["long"] == greedy_continuation([1, 2], 3)
    assert answers["short"] == greedy_continuation([3], 6)
    engine.assert_all_blocks_are_free()


def test_a_request_that_can_never_fit_is_refused_with_both_numbers():
    engine = Engine(num_blocks=9)
    engine.serve(request("r", [1] * 40))
    failure = engine.last("r").failure
    assert failure is not None
    assert failure.code == "invalid_request"
    assert "40" in failure.message
    assert "32" in failure.message


def test_a_failed_step_fails_those_in_it_and_the_engine_lives(caplog: pytest.LogCaptureFixture):
    engine = Engine()
    engine.model.error = RuntimeError("no such luck in /srv/model")
    engine.serve(request("r", [1, 2]))
    failure = engine.last("r").failure
    assert failure is not None
    assert failure.code == "internal"
    assert "no such luck" not in failure.message
    assert "no such luck" in caplog.text
    engine.assert_all_blocks_are_free()
    assert engine.serve(request("again", [1, 2]))["again"] == greedy_continuation([1, 2], 8)


def test_a_sick_request_fails_alone():
    engine = Engine(model=ContextModel(sick_token=77))
    answers = engine.serve(request("sick", [1, 77, 2]), request("well", [1, 76, 2]))
    failure = engine.last("sick").failure
    assert failure is not None
    assert failure.code == "numerics"
    assert answers["well"] == greedy_continuation([1, 76, 2], 8)
    engine.assert_all_blocks_are_free()


def test_a_lost_device_ends_the_loop():
    engine = Engine()
    engine.model.error = torch.AcceleratorError("gone")
    with pytest.raises(DeviceError):
        engine.serve(request("r", [1, 2]))


def test_a_grammar_holds_for_its_request_alone():
    engine = Engine()
    grammar = 'start: "yes" | "no"'
    answers = engine.serve(
        request("strict", [1, 2], grammar=grammar, temperature=1.0, stop=(2,)), request("free", [1, 2])
    )
    text = bytes(token - 40 for token in answers["strict"] if token >= 40)
    assert text in (b"yes", b"no")
    assert answers["strict"][-1] == 2
    assert engine.last("strict").finish_reason is FinishReason.STOP
    assert answers["free"] == greedy_continuation([1, 2], 8)


def test_a_constrained_request_survives_preemption(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "MAX_CACHED", 0)  # the cache may forget what requests still need
    grammar = 'start: "abcdefghijklmnopqrstuvwxyz"'
    requests = [request(f"r{i}", [i + 1, 9], max_tokens=20, grammar=grammar) for i in range(4)]
    engine = Engine(num_blocks=10)
    answers = engine.serve(*requests)
    assert engine.stats[-1].num_preemptions > 0
    for tokens in answers.values():
        assert bytes(token - 40 for token in tokens) == b"abcdefghijklmnopqrst"


def test_a_wrong_grammar_fails_its_request_alone():
    engine = Engine()
    answers = engine.serve(request("wrong", [1, 2], grammar="start: nowhere"), request("fine", [1, 2]))
    failure = engine.last("wrong").failure
    assert failure is not None
    assert failure.code == "grammar"
    assert "nowhere" in failure.message
    assert answers["fine"] == greedy_continuation([1, 2], 8)


def test_others_go_on_while_a_grammar_compiles():
    gate = threading.Event()

    def build(lark: str) -> CompiledGrammar:
        assert gate.wait(timeout=30)
        return CompiledGrammar(TOKENIZER, lark)

    engine = Engine(build=build)

    def open_after_the_free_one(message: Outputs) -> None:
        if "free" not in engine.open:
            gate.set()

    engine.on_outputs = open_after_the_free_one
    engine.serve(request("strict", [1, 2], grammar='start: "a"'), request("free", [1, 2], max_tokens=30))
    assert engine.tokens("free") == greedy_continuation([1, 2], 30)
    assert engine.tokens("strict")[0] == 40 + ord("a")


def test_a_request_can_be_aborted_while_its_grammar_compiles():
    gate = threading.Event()

    def build(lark: str) -> CompiledGrammar:
        assert gate.wait(timeout=30)
        return CompiledGrammar(TOKENIZER, lark)

    engine = Engine(build=build)
    strict = request("strict", [1, 2], grammar='start: "a"')
    engine.put(Submit(strict), Abort("strict"))
    engine.core.run()
    gate.set()
    assert engine.last("strict").finish_reason is FinishReason.ABORTED
    engine.assert_all_blocks_are_free()


def test_an_idle_engine_waits_and_says_that_it_lives(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(core_module, "HEARTBEAT_S", 0.01)
    engine = Engine()
    engine.open.add("nobody")  # so that the first heartbeat does not end the loop

    def stop_after_three(message: Outputs) -> None:
        assert message.outputs == ()
        if len(engine.stats) == 3:
            engine.put(Shutdown())

    engine.on_outputs = stop_after_three
    engine.core.run()
    assert len(engine.stats) == 3
    assert engine.model.num_tokens_per_pass == []


def test_warming_up_makes_one_real_token():
    engine = Engine()
    engine.core.warm_up()
    assert engine.model.num_tokens_per_pass == [1]
    assert engine.serve(request("r", [1, 2]))["r"] == greedy_continuation([1, 2], 8)


def test_an_engine_that_cannot_make_a_token_does_not_start():
    engine = Engine(model=ContextModel(sick_token=1))
    with pytest.raises(SparkstralError, match="not a finite number"):
        engine.core.warm_up()


# ---- steps in flight: the next is launched before the last one's tokens are known ----------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_overlapped_equals_one_after_the_other(temperature: float):
    requests = [request(f"r{i}", [i + 1, 9, 9], max_tokens=5 + i, temperature=temperature) for i in range(4)]
    overlapped, plain = Engine(overlaps=True), Engine()
    assert overlapped.serve(*requests) == plain.serve(*requests)
    assert overlapped.ahead is not None
    assert overlapped.ahead.num_ahead == 7  # of the longest request's 8 tokens all but the first
    overlapped.assert_all_blocks_are_free()


def test_a_stop_token_that_is_seen_late_ends_the_request_all_the_same():
    reference = greedy_continuation([5, 6], 4)
    engine = Engine(overlaps=True)
    assert engine.serve(request("r", [5, 6], stop=(reference[2],)))["r"] == reference[:3]
    assert engine.last("r").finish_reason is FinishReason.STOP
    engine.assert_all_blocks_are_free()


def test_a_grammar_is_never_overlapped():
    engine = Engine(overlaps=True)
    answers = engine.serve(request("g", [1], grammar='start: "abcdefgh"', max_tokens=8))
    assert bytes(token - 40 for token in answers["g"]) == b"abcdefgh"
    assert engine.ahead is not None
    assert engine.ahead.num_ahead == 0


def test_a_step_that_fails_costs_its_own_requests_alone(caplog: pytest.LogCaptureFixture):
    engine = Engine(overlaps=True)

    def fail_once(_: Outputs) -> None:
        if len(engine.outputs["r"]) == 3:
            engine.model.error = RuntimeError("a defect")
            engine.on_outputs = lambda _: None

    engine.on_outputs = fail_once
    engine.serve(request("r", [1, 2], max_tokens=20))
    failure = engine.last("r").failure
    assert failure is not None
    assert failure.code == "internal"
    assert "a defect" in caplog.text
    assert engine.serve(request("later", [7]))["later"] == greedy_continuation([7], 8)
    engine.assert_all_blocks_are_free()


def test_an_overlapped_engine_ends_a_request_that_its_client_leaves():
    engine = Engine(overlaps=True)

    def leave(_: Outputs) -> None:
        if len(engine.outputs.get("r", ())) == 3:
            engine.put(Abort("r"))

    engine.on_outputs = leave
    engine.serve(request("r", [1, 2], max_tokens=50), request("s", [4], max_tokens=12))
    assert engine.tokens("r") == greedy_continuation([1, 2], len(engine.tokens("r")))
    assert engine.last("r").finish_reason is FinishReason.ABORTED
    assert engine.tokens("s") == greedy_continuation([4], 12)
    engine.assert_all_blocks_are_free()
