from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkstral.scheduler.budgets import share_prefill


@given(st.integers(0, 300), st.lists(st.integers(1, 200), max_size=10))
def test_the_budget_is_used_up_and_never_overdrawn(budget: int, num_remaining: list[int]) -> None:
    shares = share_prefill(budget, num_remaining)
    assert sum(shares) == min(budget, sum(num_remaining))
    assert all(0 <= share <= remaining for share, remaining in zip(shares, num_remaining, strict=True))


@given(st.integers(1, 300), st.lists(st.integers(1, 200), min_size=1, max_size=10))
def test_the_oldest_is_sure_of_half(budget: int, num_remaining: list[int]) -> None:
    assert share_prefill(budget, num_remaining)[0] >= min(num_remaining[0], budget / 2)


def test_the_shortest_get_the_other_half() -> None:
    assert share_prefill(100, [1000, 70, 30]) == [50, 20, 30]


def test_what_the_short_ones_leave_goes_to_the_long_one() -> None:
    assert share_prefill(100, [1000, 10]) == [90, 10]


def test_of_equal_ones_the_older_goes_first() -> None:
    assert share_prefill(100, [80, 80, 80]) == [80, 20, 0]
