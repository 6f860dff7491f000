"""Which form of the kernels a device gets, and what is said where it gets none."""

from __future__ import annotations

import pytest
import torch

from sparkstral.errors import ConfigError
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.select import MIN_TRITON, check_supported, select_kernels


def test_a_cpu_gets_the_references() -> None:
    assert select_kernels("auto", torch.device("cpu")) is None


@pytest.mark.parametrize("capability", MIN_TRITON)
def test_every_device_that_is_served_has_all_configurations(capability: tuple[int, int]) -> None:
    check_supported("GPU", capability, "{}.{}.1".format(*MIN_TRITON[capability]))
    assert KernelConfigs.shipped(capability).pdl


@pytest.mark.parametrize(
    ("capability", "version", "said"),
    [
        ((8, 9), "3.9.0", "L4 has CUDA capability 8.9; the kernels are made for 9.0, 12.1"),
        ((12, 1), "3.7.1", "Triton is 3.7.1; for L4 .* it must be 3.8 or newer, which PyTorch 2.14"),
        ((9, 0), "3.10.0", None),
        ((9, 0), "3.5.1", "must be 3.6 or newer"),
        ((9, 0), None, "Triton is not installed"),
    ],
)
def test_what_does_not_fit_is_said_with_the_remedy(
    capability: tuple[int, int], version: str | None, said: str | None
) -> None:
    if said is None:
        check_supported("L4", capability, version)
        return
    with pytest.raises(ConfigError, match=said) as raised:
        check_supported("L4", capability, version)
    assert "--kernels reference" in str(raised.value)
