"""Any mix of requests, arrivals, aborts, chunk sizes and pool sizes: right answers, one end each, no block lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstral.engine.messages import Abort, Outputs, Submit
from sparkstral.types import FinishReason
from tests.support.context_model import greedy_continuation
from tests.support.core_bench import Engine, request


@dataclass(frozen=True)
class Visit:
    """One client: a prompt that may share its beginning with others, when it comes, and when it leaves early."""

    prefix_length: int
    suffix: tuple[int, ...]
    max_tokens: int
    arrives_after: int  # messages from the engine
    leaves_after: int | None  # outputs of its own
    constrained: bool

    @property
    def prompt(self) -> list[int]:
        return [*range(100, 100 + self.prefix_length), *self.suffix]


visits = st.builds(
    Visit,
    prefix_length=st.integers(0, 14),
    suffix=st.lists(st.integers(40, 43), min_size=1, max_size=6).map(tuple),
    max_tokens=st.integers(1, 10),
    arrives_after=st.integers(0, 8),
    leaves_after=st.none() | st.integers(1, 4),
    constrained=st.booleans(),
)
LETTERS = "abcdefghij"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(visits, min_size=1, max_size=8),
    st.integers(9, 24),
    st.integers(9, 40),
    st.booleans(),
    st.sampled_from([0, 0, 1, 3, 6]),
)
def test_any_traffic_is_served_right(
    clients: list[Visit], num_blocks: int, max_num_batched_tokens: int, overlaps: bool, depth: int
):
    engine = Engine(
        num_blocks=num_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        overlaps=overlaps,
        depth=depth,
    )
    requests = {
        f"r{i}": request(
            f"r{i}", visit.prompt, visit.max_tokens, grammar=f'start: "{LETTERS}"' if visit.constrained else None
        )
        for i, visit in enumerate(clients)
    }
    by_id = dict(zip(requests, clients, strict=True))
    engine.open.update(requests)
    left: set[str] = set()

    def arrive_and_leave(_: Outputs) -> None:
        for request_id, visit in by_id.items():
            if visit.arrives_after == len(engine.stats):
                engine.inbox.put(Submit(requests[request_id]))
            if len(engine.outputs.get(request_id, ())) == visit.leaves_after and request_id not in left:
                left.add(request_id)
                engine.inbox.put(Abort(request_id))
        engine.inbox.wake()  # arrivals are counted in messages: an idle engine must not wait for them

    engine.on_outputs = arrive_and_leave
    for request_id, visit in by_id.items():
        if visit.arrives_after == 0:
            engine.inbox.put(Submit(requests[request_id]))
    engine.inbox.wake()
    engine.core.run()

    for request_id, visit in by_id.items():
        answer, last = engine.tokens(request_id), engine.last(request_id)
        assert last.failure is None
        if visit.constrained:
            expected = [40 + ord(letter) for letter in LETTERS][: visit.max_tokens]
        else:
            expected = greedy_continuation(visit.prompt, visit.max_tokens)
        if last.finish_reason is FinishReason.ABORTED:
            assert request_id in left
            assert answer == expected[: len(answer)]
        else:
            assert answer == expected
        assert last.num_cached_tokens < len(visit.prompt)
    engine.assert_all_blocks_are_free()
