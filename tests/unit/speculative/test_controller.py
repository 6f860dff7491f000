"""How many drafts are verified: on machines whose steps take what a formula says, by a clock that tests turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sparkstral.speculative.controller import DepthController, DraftRecord, DraftStep, StepCosts

MAX_DEPTH = 7
Cost = Callable[[int], float]  # seconds of a step of so many tokens


def flat(num_tokens: int) -> float:
    """As good as a bus-bound step with dense weights alone gets: each token more costs little."""
    return 0.010 + 0.0003 * num_tokens


def experts(num_tokens: int) -> float:
    """Each token reads other experts: most of the time grows with the tokens."""
    return 0.004 + 0.006 * num_tokens


def steep(num_tokens: int) -> float:
    """No token comes cheaper in company: speculation cannot win."""
    return 0.010 * num_tokens


def cliff(num_tokens: int) -> float:
    """Cheap to three tokens, then another kernel."""
    return 0.010 if num_tokens <= 3 else 0.040


@dataclass
class Machine:
    """Serves `num_rows` requests for ever; a draft stands with `rate(time)`, and there are any with `finds`."""

    cost: Cost
    rate: Callable[[float], float]
    num_rows: int = 1
    finds: float = 1.0
    draft_s: float = 0.0  # each
    noise: float = 0.0
    seed: int = 0
    time_s: float = 0.0
    num_tokens: int = 0
    drafted: list[int] = field(default_factory=list)  # of each step

    def run(self, num_steps: int) -> None:
        draw = random.Random(self.seed)
        controller = DepthController(MAX_DEPTH)
        records = [DraftRecord() for _ in range(self.num_rows)]
        drafts = [0] * self.num_rows
        for _ in range(num_steps):
            chosen = controller.choose(list(zip(records, drafts, strict=True)), self.num_rows, 64)
            accepted = []
            for count in chosen:
                stood = 0
                while stood < count and draw.random() < self.rate(self.time_s):
                    stood += 1
                accepted.append(stood)
            wanted = [controller.wanted(record, self.num_rows) for record in records]
            drafts = [count if draw.random() < self.finds else 0 for count in wanted]
            proposing_s = self.draft_s * sum(wanted)
            jitter = 1 + self.noise * abs(draw.gauss(0, 1))
            seconds = self.cost(self.num_rows + sum(chosen)) * jitter + proposing_s
            for record, count, stood in zip(records, chosen, accepted, strict=True):
                if count:
                    controller.verified(record, count, stood)
            controller.took(
                DraftStep(self.num_rows, sum(chosen), sum(accepted), seconds, proposing_s, sum(drafts))
            )
            self.time_s += seconds
            self.num_tokens += self.num_rows + sum(accepted)
            self.drafted.append(sum(chosen))

    @property
    def speedup(self) -> float:
        """On plain steps, with the same noise."""
        mean_noise = 1 + self.noise * 0.7979
        return self.num_tokens / self.num_rows * self.cost(self.num_rows) * mean_noise / self.time_s


@pytest.mark.parametrize("cost", [flat, experts, steep, cliff])
@pytest.mark.parametrize("num_rows", [1, 4, 16])
@pytest.mark.parametrize(("rate", "finds"), [(0.0, 1.0), (0.3, 0.3), (0.6, 1.0)])
@pytest.mark.parametrize(("draft_s", "noise"), [(0.0, 0.0), (0.0, 0.2), (0.002, 0.1)])
def test_it_is_never_slower_than_plain_by_more_than_three_percent(
    cost: Cost, num_rows: int, rate: float, finds: float, draft_s: float, noise: float
):
    machine = Machine(cost, lambda _: rate, num_rows, finds, draft_s, noise)
    machine.run(500)
    assert machine.speedup > 0.97


def test_drafts_that_stand_are_taken_where_tokens_are_cheap():
    machine = Machine(flat, lambda _: 0.9)
    machine.run(500)
    assert machine.speedup > 3.5  # of 5.7 tokens a step at depth 7, which takes 1.2 times as long
    assert machine.drafted[-1] >= 5


def test_the_depth_follows_the_cost_of_a_token():
    machine = Machine(experts, lambda _: 0.9)
    machine.run(1000)
    assert machine.speedup > 1.15  # of 1.23 at depth 2
    assert max(machine.drafted[-100:]) <= 4


def test_the_depth_stops_before_a_cliff():
    machine = Machine(cliff, lambda _: 0.8)
    machine.run(500)
    assert machine.speedup > 1.8
    assert sorted(machine.drafted)[len(machine.drafted) // 2] == 2


def test_drafts_that_never_stand_are_hardly_tried():
    machine = Machine(experts, lambda _: 0.0)
    machine.run(1000)
    assert sum(count > 0 for count in machine.drafted) < 30


def test_a_text_that_becomes_predictable_is_found_out():
    machine = Machine(flat, lambda time_s: 0.0 if time_s < 5 else 0.9)
    machine.run(1500)
    assert sum(machine.drafted[-200:]) > 800


def test_a_text_that_becomes_unpredictable_is_dropped():
    machine = Machine(experts, lambda time_s: 0.9 if time_s < 5 else 0.0)
    machine.run(1500)
    assert sum(machine.drafted[-200:]) < 40


def test_of_two_requests_the_better_one_is_drafted_for():
    controller = DepthController(MAX_DEPTH)
    good, bad = DraftRecord(), DraftRecord()
    for _ in range(20):
        controller.verified(good, 4, 4)
        controller.verified(bad, 4, 0)
    for num_drafts in (0, 7, 14):
        controller.took(DraftStep(2, num_drafts, num_drafts, flat(2 + num_drafts)))
    deep, shallow = controller.choose([(good, 7), (bad, 7)], 2, 64)
    assert deep > shallow
    assert sum(controller.choose([(good, 7), (bad, 7)], 2, 3)) == 3


def test_nothing_is_drafted_before_a_plain_step_was_timed():
    controller = DepthController(MAX_DEPTH)
    record = DraftRecord()
    assert controller.choose([(record, 7)], 1, 64) == [0]
    controller.took(DraftStep(1, 0, 0, 0.01))
    assert controller.choose([(record, 7)], 1, 64) != [0]
    assert controller.choose([(record, 7)] * 2, 2, 64) == [0, 0]


def test_drafts_that_cost_time_are_only_asked_for_if_they_pay():
    machine = Machine(flat, lambda _: 0.5, draft_s=0.02)  # two plain steps for a draft
    machine.run(300)
    assert 0.97 < machine.speedup < 1.01


def test_a_time_that_is_not_known_is_hoped_to_be_short():
    costs = StepCosts()
    costs.took(1, 1.0)
    assert costs.estimate(5) == 1.0
    costs.took(5, 3.0)
    assert [costs.estimate(n) for n in (1, 2, 5, 9)] == [1.0, 1.0, 3.0, 5.0]
    assert costs.measured(2) is None


def test_a_step_that_was_held_back_in_vain_is_paid_for():
    """It could have been planned while the one before it ran: what it took more is speculation's loss."""
    controller = DepthController(MAX_DEPTH)
    controller.took(DraftStep(1, 0, 0, 0.010))
    assert controller.may_speculate(1)
    controller.took(DraftStep(1, 0, 0, 0.013, was_held_back=True))
    assert not controller.may_speculate(1)
    for _ in range(16):  # of which each earns 2 %
        controller.took(DraftStep(1, 0, 0, 0.010))
    assert controller.may_speculate(1)


def test_beside_prompts_drafts_are_charged_what_they_cost_alone():
    """The time of such a step does not tell; drafts that fall there empty the purse all the same."""
    controller = DepthController(MAX_DEPTH)
    controller.took(DraftStep(1, 0, 0, experts(1)))
    controller.took(DraftStep(1, 1, 1, experts(2)))
    assert controller.may_speculate(1)
    controller.took(DraftStep(1, 1, 0, None))
    controller.took(DraftStep(1, 1, 0, None))
    assert not controller.may_speculate(1)
