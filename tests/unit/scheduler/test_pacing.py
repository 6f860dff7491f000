"""The pacer against machines whose times are known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sparkstral.scheduler.budgets import SchedulerConfig
from sparkstral.scheduler.pacing import Pacer
from sparkstral.scheduler.scheduler import Scheduler
from tests.unit.scheduler.fake_engine import FakeEngine, make_request

Machine = Callable[[int, int], float]  # answers, tokens of prompts -> seconds


def run(machine: Machine, num_steps: int = 400, num_decoding: int = 8, limit: int = 2048) -> list[tuple[int, float]]:
    """(tokens of prompts, seconds) of each step, with a prompt that never ends beside the answers."""
    pacer, rows = Pacer(3.0), []
    pacer.took(num_decoding, 0, 0, machine(num_decoding, 0))
    for _ in range(num_steps):
        num_tokens = pacer.prompt_tokens(num_decoding, 0, limit)
        seconds = machine(num_decoding, num_tokens)
        pacer.took(num_decoding, num_tokens, 0, seconds)
        rows.append((num_tokens, seconds))
    return rows


def line(decode_s: float, fixed_s: float, token_s: float) -> Machine:
    return lambda _, p: decode_s + (fixed_s + token_s * p if p else 0.0)


@pytest.mark.parametrize("token_s", [15e-3, 1e-3, 1e-4, 2e-5])
def test_answers_stay_within_the_slowdown_whatever_a_token_of_a_prompt_costs(token_s: float):
    rows = run(line(0.02, 0.001, token_s))
    assert max(seconds for _, seconds in rows) < 3 * 0.02
    used_s = sum(p * token_s for p, _ in rows)
    assert used_s > 0.25 * sum(seconds for _, seconds in rows)  # and the prompt gets its share of the time


def test_noise_of_a_busy_machine_does_not_change_that():
    rng = random.Random(0)
    machine = line(0.02, 0.004, 1e-3)
    rows = run(lambda n, p: machine(n, p) * rng.uniform(0.8, 1.3), num_steps=2000)
    times = sorted(seconds for _, seconds in rows)
    assert times[int(0.99 * len(times))] < 3 * 0.02 * 1.15
    assert sum(p for p, _ in rows) * 1e-3 > 0.2 * sum(times)


def test_a_context_that_grows_is_followed():
    context = 0

    def machine(_: int, p: int) -> float:
        nonlocal context
        context += p
        return 0.02 + p * (1e-4 + 1e-6 * context)

    assert max(seconds for _, seconds in run(machine)) < 3 * 0.02


def test_where_any_chunk_is_slow_it_is_made_worth_it():
    """Reading all experts for a single token of a prompt: 200 ms, where a step of answers takes 30."""
    rows = run(line(0.03, 0.2, 2.5e-4))
    large = [p for p, _ in rows[50:] if p]
    assert 300 < sum(large) / len(large) < 900  # their tokens cost about what their beginning does
    assert max(seconds for _, seconds in rows) < 0.03 + 2.2 * 0.2


def test_alone_a_prompt_gets_everything():
    pacer = Pacer(3.0)
    pacer.took(8, 0, 0, 0.02)
    assert pacer.prompt_tokens(0, 0, 2048) == 2048
    assert Pacer(None).prompt_tokens(8, 0, 2048) == 2048


def test_no_step_is_much_longer_than_a_second_though_the_context_grows_and_nobody_is_answered():
    pacer, context, longest, num_steps = Pacer(None), 0, 0.0, 0
    while context < 12_000:
        num_tokens = pacer.prompt_tokens(0, 0, 2048)
        context += num_tokens
        seconds = num_tokens * (3e-4 + 3e-7 * context)
        pacer.took(0, num_tokens, 0, seconds)
        longest, num_steps = max(longest, seconds), num_steps + 1
    assert longest < 2.0
    assert num_steps < 50
    pacer.took(0, 5, 0, 0.03)  # a short prompt: not slow for a token, only short
    assert pacer.prompt_tokens(0, 0, 2048) > 200
    pacer.took(0, 250, 0, 0.1)
    assert pacer.prompt_tokens(0, 0, 2048) == 1000
    pacer.took(0, 1000, 0, 0.3)
    assert pacer.prompt_tokens(0, 0, 2048) == 2048


def test_a_step_without_prompts_is_planned_to_learn_what_answers_take_alone():
    pacer = Pacer(3.0)
    pacer.took(0, 2048, 0, 1.0)
    assert pacer.prompt_tokens(1, 0, 2048) == 0
    pacer.took(1, 0, 0, 0.02)
    assert 0 < pacer.prompt_tokens(1, 0, 2048) <= 2


def test_the_scheduler_keeps_the_pace():
    engine = FakeEngine(num_blocks=600, max_num_batched_tokens=512, max_model_len=2200)
    engine.scheduler = Scheduler(SchedulerConfig(4, 512, 2200, 50, max_slowdown=3.0), engine.cache)
    engine.add(make_request("chat", range(5), max_tokens=200))
    engine.add(make_request("long", [i % 47 for i in range(2000)], max_tokens=1))
    slowest = 0.0
    while "long" in engine.scheduler._requests:
        plan = engine.step()
        num_tokens = sum(len(row.token_ids) for row in plan.scheduled)
        seconds = 0.01 + 1e-3 * num_tokens
        if len(engine.num_computed_by_step) > 2:
            assert any(row.request_id == "chat" for row in plan.scheduled), "an answer waits"
            slowest = max(slowest, seconds)
        engine.scheduler.took(plan, seconds, seconds)
    assert slowest < 3 * 0.011


def test_a_short_prompt_does_not_pay_for_the_context_of_a_long_one() -> None:
    """Behind 600 tokens of context a token costs more than a step of answers; at the beginning a fiftieth of one."""
    engine = FakeEngine(num_blocks=400, max_num_batched_tokens=512, max_model_len=1300)
    engine.scheduler = Scheduler(SchedulerConfig(4, 512, 1300, 50, max_slowdown=3.0), engine.cache)
    engine.add(make_request("chat", range(5), max_tokens=1000))
    engine.add(make_request("long", [i % 47 for i in range(1200)], max_tokens=1))

    def step() -> float:
        plan = engine.step()
        prompts = [row for row in plan.scheduled if row.request_id != "chat"]
        seconds = 0.02 + sum(len(row.token_ids) * (4e-4 + 4e-5 * row.num_computed_tokens) for row in prompts)
        engine.scheduler.took(plan, seconds, seconds)
        return seconds

    while engine.num_computed_tokens("long") < 600:
        step()
    engine.add(make_request("short", range(9, 49), max_tokens=1))
    before, num_steps, slowest = engine.num_computed_tokens("long"), 0, 0.0
    while "short" not in engine.outputs:
        slowest = max(slowest, step())
        num_steps += 1
    assert num_steps < 32
    assert slowest < 3 * 0.02 * 1.3
    assert engine.num_computed_tokens("long") > before
