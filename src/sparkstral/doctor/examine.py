"""All checks, in the order in which a reader understands them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkstral.config import DEFAULT_HOST, DEFAULT_PORT
from sparkstral.doctor import gpu_checks, host_checks, model_checks
from sparkstral.doctor.check import Check
from sparkstral.doctor.machine import Machine

ON_MACHINE: tuple[Callable[[Machine], Check], ...] = (
    host_checks.check_python,
    host_checks.check_libc,
    host_checks.check_mistral_common,
    gpu_checks.check_driver,
    gpu_checks.check_cuda,
    gpu_checks.check_triton,
    gpu_checks.check_ptxas,
    gpu_checks.check_kernel_cache,
    gpu_checks.check_bandwidth,
    gpu_checks.check_heat,
    gpu_checks.check_others_on_gpu,
    host_checks.check_memory,
    host_checks.check_swap,
    host_checks.check_page_cache,
    host_checks.check_hub_cache,
    host_checks.check_clock,
)


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be served, and where."""

    folder: Path | None = None  # of the checkpoint
    missing: str = ""  # why there is no folder, where a model was named
    deep: bool = False
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT


def examine(machine: Machine, target: Target) -> Iterator[Check]:
    """One after the other, as they are done."""
    for check in ON_MACHINE:
        yield check(machine)
    yield host_checks.check_port(target.host, target.port)
    if target.missing:
        yield model_checks.check_checkpoint(None, target.missing)
    else:
        yield model_checks.check_checkpoint(target.folder)
    yield model_checks.check_hashes(target.folder, target.deep)
    yield model_checks.check_disk(machine, target.folder)
