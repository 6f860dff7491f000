"""What a measurement is worth nothing without: device, driver, versions, commit and command."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

SCHEMA_VERSION = 1


def describe_run(kind: str) -> dict[str, Any]:
    """The head of a run's JSON; `kind` says which command made it."""
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "command": [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": _version("triton"),
            "sparkstral": _version("sparkstral"),
            "cuda": torch.version.cuda,
        },
        "machine": platform.machine(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["device"] = properties.name
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["num_sms"] = properties.multi_processor_count
        found["memory_bytes"] = properties.total_memory
    else:
        found["device"] = "cpu"
    return found


def write_report(path: Path, report: dict[str, Any]) -> None:
    """As JSON that every reader takes: numbers that are not finite are written as words."""
    path.write_text(json.dumps(_finite(report), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """What a command prints, in one line; None where there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return next(iter(done.stdout.split("\n"))).strip() or None
