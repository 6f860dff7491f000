"""What an engine refuses before it loads anything, and in which words."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from sparkstral.config import EngineConfig
from sparkstral.engine import build
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.lifecycle import live
from sparkstral.engine.messages import FromEngine, StatusChanged
from sparkstral.errors import MemoryPlanError
from sparkstral.memory.holders import Holder
from sparkstral.memory.plan import MemoryPlan
from sparkstral.memory.probe import AvailableMemory, HostMemory
from sparkstral.runner import held
from sparkstral.types import EnginePhase
from sparkstral.units import GiB

CPU, GPU = torch.device("cpu"), torch.device("cuda")
OTHER = Holder(4242, "vllm", 66 * GiB, "GPU")
CONFIG = EngineConfig(Path("model"))


def plan(fits: bool) -> MemoryPlan:
    return MemoryPlan((), AvailableMemory(GiB, "test"), 0, 2, 64, 1, 1, fits, "It does not fit.")


def test_a_gpu_that_is_not_there_is_a_usage_error() -> None:
    said: list[FromEngine] = []
    live(EngineConfig(Path("model"), device="cuda"), Inbox(), said.append)
    last = said[-1]
    assert isinstance(last, StatusChanged)
    assert last.status.phase is EnginePhase.DEAD
    assert last.status.is_usage_error
    assert "--device cuda: this PyTorch sees no GPU. Use --device cpu" in last.status.detail


@pytest.mark.parametrize(("is_integrated", "available"), [(True, 110 * GiB), (False, 40 * GiB)])
def test_a_gpu_that_shares_memory_has_what_the_kernel_counts_and_another_has_its_own(
    monkeypatch: pytest.MonkeyPatch, is_integrated: bool, available: int
) -> None:
    """The driver calls page cache used; the kernel knows that it gives way."""

    class Properties:
        pass

    properties = Properties()
    vars(properties)["is_integrated"] = is_integrated
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (40 * GiB, 120 * GiB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GB10")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: GiB)
    monkeypatch.setattr(build, "host_memory", lambda: AvailableMemory(110 * GiB, "MemAvailable"))
    monkeypatch.setattr(held, "read_host", lambda: HostMemory(120 * GiB, 110 * GiB))
    assert build.available_memory(GPU).num_bytes == available
    assert held.taken_now(GPU) == held.Taken(120 * GiB - available, GiB)


def test_a_refusal_names_the_large_model_that_holds_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "gpu_holders", lambda: (OTHER,))
    monkeypatch.setattr(build, "host_holders", lambda: ())
    with pytest.raises(MemoryPlanError) as refused:
        build.require(plan(fits=False), CONFIG, GPU)
    stopped = "Another large model must be stopped first: vllm (pid 4242, 66.00 GiB of GPU memory)."
    assert str(refused.value) == f"It does not fit. {stopped}"


def test_another_large_model_is_told_though_both_fit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "gpu_holders", lambda: (OTHER,))
    with caplog.at_level(logging.WARNING):
        build.require(plan(fits=True), CONFIG, GPU)
    assert "Another large model is there: vllm (pid 4242" in caplog.text


def test_without_a_gpu_a_model_that_is_too_large_says_that_none_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "host_holders", lambda: ())
    with pytest.raises(MemoryPlanError, match=r"^It does not fit\. PyTorch sees no GPU"):
        build.require(plan(fits=False), CONFIG, CPU)
    with pytest.raises(MemoryPlanError, match=r"^It does not fit\.$"):
        build.require(plan(fits=False), EngineConfig(Path("model"), device="cpu"), CPU)
