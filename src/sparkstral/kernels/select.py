"""Which form of the operations a device gets: the Triton kernels or the plain references. Decided once, and logged.

Owns which devices and which versions of Triton the kernels are made for; must not know the model. A device that the
kernels do not know is an error and not a silent fallback: the references hold the experts decoded, four times the
memory, and are many times slower.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import torch

from sparkstral.errors import ConfigError

if TYPE_CHECKING:
    from sparkstral.kernels.configs import KernelConfigs

logger = logging.getLogger(__name__)

KernelChoice = Literal["auto", "reference"]
# By CUDA capability: the oldest Triton that compiles the kernels correctly for it, and what brings that.
MIN_TRITON = {(9, 0): (3, 6), (12, 1): (3, 8)}
_TORCH_WITH = {(3, 6): "2.11", (3, 8): "2.14"}
_REFERENCE = "--kernels reference computes with plain PyTorch instead: many times slower, and in four times the memory"


def select_kernels(choice: KernelChoice, device: torch.device) -> KernelConfigs | None:
    """The kernels' configurations for `device`, or None for the references: on a CPU, or if `choice` says so.

    Raises ConfigError, before any long work, for a GPU or a Triton that the kernels are not made for.
    """
    if device.type == "cpu" or choice == "reference":
        logger.info("kernels: plain PyTorch (%s)", "the CPU has no others" if device.type == "cpu" else "as asked for")
        return None
    capability = torch.cuda.get_device_capability(device)
    version = installed_triton()
    check_supported(torch.cuda.get_device_name(device), capability, version)
    from sparkstral.kernels.configs import KernelConfigs
    from sparkstral.kernels.tuned import load_tuned

    choices = load_tuned() or {}
    source = f"tuned here: {', '.join(choices)}" if choices else "as shipped"
    logger.info("kernels: Triton %s, CUDA capability %s, configurations %s", version, shown(capability), source)
    return KernelConfigs.shipped(capability).tuned(choices)


def check_w4a4(capability: tuple[int, int] | None) -> None:
    """Raises ConfigError for a device (None: one without kernels) that does not multiply NVFP4 by NVFP4. Which Triton
    compiles it is what `check_supported` asks of such a device anyway."""
    if capability is not None and capability[0] == 12:
        return
    found = "the reference is served here" if capability is None else f"this GPU has capability {shown(capability)}"
    raise ConfigError(
        f"--prefill w4a4 takes a GPU that multiplies NVFP4 (CUDA capability 12.x, a GB10); {found}. Leave it out."
    )


def shown(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def installed_triton() -> str | None:
    """Triton's version; None where it is not installed (torch for CPUs brings none)."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def check_supported(device_name: str, capability: tuple[int, int], triton_version: str | None) -> None:
    """Raises ConfigError with what is there, what is needed and what to do."""
    if capability not in MIN_TRITON:
        known = ", ".join(f"{major}.{minor}" for major, minor in MIN_TRITON)
        raise ConfigError(
            f"{device_name} has CUDA capability {shown(capability)}; the kernels are made for {known} (H100 and H200, "
            f"GB10). Use one of these. {_REFERENCE}."
        )
    needed = MIN_TRITON[capability]
    if triton_version is not None and tuple(int(part) for part in triton_version.split(".")[:2]) >= needed:
        return
    found = "is not installed" if triton_version is None else f"is {triton_version}"
    raise ConfigError(
        f"Triton {found}; for {device_name} (CUDA capability {shown(capability)}) it must be {needed[0]}.{needed[1]} "
        f"or newer, which PyTorch {_TORCH_WITH[needed]} for CUDA brings: install that. {_REFERENCE}."
    )
