"""Every variant of every kernel compiles for the devices that are served, and fits them.

GB10 (SM 12.1) has 99 KiB of shared memory a block, an H200 227 KiB. A register that spills costs more than any
tuning gains. No GPU is needed; each operation is compiled in a process of its own, without the interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

import sparkstral.kernels

SHARED_BYTES = {121: 101_376, 90: 232_448}
REPOSITORY = Path(__file__).parents[2]
OPERATIONS = sorted(file.parent.name for file in Path(sparkstral.kernels.__path__[0]).glob("*/triton_kernel.py"))
TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_shipped_variant_compiles_and_fits(operation: str, capability: int) -> None:
    assert TRITON >= (3, 8), f"Triton {triton.__version__} does not know SM 12.1's block-scaled products; 3.8 does"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in [*sys.path, str(REPOSITORY)] if path)
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.build", str(capability), operation]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    variants = [json.loads(line) for line in done.stdout.splitlines()]
    assert variants
    unfit = [
        variant
        for variant in variants
        if variant["shared_bytes"] > SHARED_BYTES[capability] or variant["spill_bytes"] or variant["missing"]
    ]
    assert not unfit
