"""Flags that several commands share, and how they become configurations."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkstral.config import DEFAULT_MAX_SLOWDOWN, EngineConfig
from sparkstral.errors import ConfigError
from sparkstral.units import GiB, KiB, MiB

Model = Annotated[
    str, typer.Argument(help="demo, the folder of a checkpoint, or a Hub id.", show_default=True, metavar="MODEL")
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", min=1, help="Tokens of prompt and answer together. Default: all that fits."),
]
MaxNumSeqs = Annotated[int, typer.Option("--max-num-seqs", min=1, max=1024, help="Requests that run at once.")]
MaxNumBatchedTokens = Annotated[
    int, typer.Option("--max-num-batched-tokens", min=16, help="Tokens of one step; longer prompts go in chunks.")
]
MaxSlowdown = Annotated[
    float,
    typer.Option("--max-slowdown", min=0, help="How many times slower answers may come beside prompts; 0: any."),
]
KvMemory = Annotated[
    str | None, typer.Option("--kv-memory", help="Size of the KV cache, e.g. 8GiB. Default: what the plan finds.")
]
KvDir = Annotated[
    Path | None, typer.Option("--kv-dir", help="A folder in which cached prefixes of long prompts outlive a restart.")
]
KvDirSize = Annotated[str | None, typer.Option("--kv-dir-size", help="How large it may get. Default: 64GiB.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads. Default: all cores.")]


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


DeviceChoice = Annotated[Device, typer.Option("--device", help="Where to compute.")]


class Kernels(StrEnum):
    auto = "auto"
    reference = "reference"


KernelsChoice = Annotated[
    Kernels, typer.Option("--kernels", help="On a GPU: its own kernels, or plain PyTorch, slow and large.")
]

_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(GiB|MiB|KiB|GB|MB|KB|G|M|K|B)?$", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "k": KiB, "m": MiB, "g": GiB}
_DECIMAL_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_bytes(text: str, flag: str) -> int:
    """A size such as 8GiB (2^30), 8G (the same), 8GB (10^9) or plain bytes. Raises ConfigError naming the flag."""
    match = _SIZE.match(text.strip())
    if match is None:
        raise ConfigError(f"{flag}: {text!r} is not a size. Write for example 8GiB, 512MiB or a number of bytes.")
    return int(float(match[1]) * (_UNITS | _DECIMAL_UNITS)[(match[2] or "").lower()])


def engine_config(
    model_path: Path,
    *,
    device: Device = Device.auto,
    kernels: Kernels = Kernels.auto,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    kv_memory: str | None = None,
    kv_dir: Path | None = None,
    kv_dir_size: str | None = None,
    threads: int | None = None,
) -> EngineConfig:
    """The engine's configuration from flags; None leaves the default of config.py."""
    given: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_memory_bytes": None if kv_memory is None else parse_bytes(kv_memory, "--kv-memory"),
        "kv_dir": kv_dir,
        "kv_dir_bytes": None if kv_dir_size is None else parse_bytes(kv_dir_size, "--kv-dir-size"),
        "num_threads": threads,
    }
    return EngineConfig(
        model_path=model_path,
        device=device.value,
        kernels=kernels.value,
        max_model_len=max_model_len,
        max_slowdown=max_slowdown or None,
        **{name: value for name, value in given.items() if value is not None},
    )
