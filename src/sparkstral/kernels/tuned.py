"""Configurations that were measured to be best on one device: where they lie, and how they become configurations.

Owns the file that `sparkstral tune` writes and `load_tuned` reads: changes of the shipped configurations, which hold
for one source of the kernels, one Triton and one device. Serving reads it once and never tunes; without a file, or
with one of another version, the shipped configurations serve.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton

SCHEMA_VERSION = 1


@cache
def source_digest() -> str:
    """Of all files of kernels/: figures of another source say nothing about this one."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def default_path(device: str) -> Path:
    """Where the choices for a device of this name lie, by source and versions."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkstral" / "tuned"
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{device} triton {triton.__version__} {source_digest()}")
    return folder / f"{name}.json"


def holds_for(device: str, capability: tuple[int, int]) -> dict[str, Any]:
    """What a file must say of itself to be believed."""
    return {
        "schema_version": SCHEMA_VERSION,
        "device": device,
        "capability": ".".join(map(str, capability)),
        "triton": triton.__version__,
        "source": source_digest(),
    }


def load_tuned(path: Path | None = None) -> dict[str, Any] | None:
    """Each tuned operation's configuration, complete, for the current GPU; None without a file that holds for it.

    `path` None is where `sparkstral tune` writes. Operations that are absent keep CONFIGS."""
    device, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    try:
        document = json.loads((path or default_path(device)).read_text())
    except (OSError, ValueError):
        return None
    expected = holds_for(device, capability)
    if {name: document.get(name) for name in expected} != expected:
        return None
    return apply_choices(document["choices"], capability)


def apply_choices(choices: Mapping[str, Mapping[str, Any]], capability: tuple[int, int]) -> dict[str, Any]:
    """{operation: {dotted path: value}} -> {operation: configuration}."""
    found = {}
    for operation, changes in choices.items():
        base = importlib.import_module(f"sparkstral.kernels.{operation}.triton_kernel").CONFIGS[capability]
        found[operation] = changed(base, changes)
    return found


def changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """`config` with the values at dotted paths replaced ("few.down.rows", "many.0.gate_up"). Raises ValueError or
    TypeError for a path that is not there."""
    for path, value in changes.items():
        config = _replaced(config, path.split("."), value)
    return config


def _replaced(config: Any, path: list[str], value: Any) -> Any:
    if not path:
        is_part = is_dataclass(config) and not isinstance(config, type) and isinstance(value, Mapping)
        return replace(config, **value) if is_part else value
    name, *rest = path
    if isinstance(config, tuple):
        index = int(name)
        return (*config[:index], _replaced(config[index], rest, value), *config[index + 1 :])
    return replace(config, **{name: _replaced(getattr(config, name, None), rest, value)})


def as_json(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        path: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for path, value in changes.items()
    }
