"""Silence and failures, in time that the test makes."""

from __future__ import annotations

from sparkstral.engine.supervision import Patience, Pulse, Restarts


def test_silence_grows_until_the_engine_speaks():
    pulse = Pulse(max_step_s=1.0)
    assert [pulse.tick(t) for t in (100.0, 100.5, 101.0)] == [0.0, 0.5, 1.0]
    pulse.beat()
    assert pulse.tick(101.5) == 0.5


def test_time_in_which_nobody_could_listen_is_not_silence():
    pulse = Pulse(max_step_s=1.0)
    pulse.tick(0.0)
    assert pulse.tick(3600.0) == 1.0


def test_pauses_grow_and_the_third_failure_within_the_window_is_the_last():
    restarts = Restarts(Patience(first_delay_s=1.0, max_failures=3, window_s=600.0))
    assert [restarts.delay_after_failure(t) for t in (0.0, 10.0, 599.0)] == [1.0, 4.0, None]
    assert restarts.num_recent == 3


def test_failures_that_are_far_apart_are_borne_for_ever():
    restarts = Restarts(Patience(first_delay_s=1.0, max_failures=3, window_s=600.0))
    assert [restarts.delay_after_failure(400.0 * i) for i in range(50)] == [1.0, *[4.0] * 49]
