"""Flags that several commands share, and how they become configurations."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkstral.config import DEFAULT_MAX_SLOWDOWN, MAX_DRAFT_TOKENS, EngineConfig
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


class Speculative(StrEnum):
    auto = "auto"
    eagle = "eagle"
    prompt_lookup = "prompt-lookup"
    off = "off"


SpeculativeChoice = Annotated[
    Speculative,
    typer.Option(
        "--speculative",
        help="Who guesses tokens ahead; answers stay the same. auto: prompt-lookup, on a GPU off; eagle: not yet.",
    ),
]
MaxDraftTokens = Annotated[
    int,
    typer.Option(
        "--max-draft-tokens", min=1, max=MAX_DRAFT_TOKENS, help="Tokens guessed ahead at most; fewer where that pays."
    ),
]

Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads. Default: all cores.")]


ApiKeys = Annotated[
    list[str] | None,
    typer.Option("--api-key", help="A key that clients must send; may be repeated. Others on this machine can see it."),
]
ApiKeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", help="A file with such keys, one a line; # begins a comment.")
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option("--cors-origin", help="A site whose pages may use the server, e.g. http://localhost:3000, or *."),
]


NoVision = Annotated[
    bool, typer.Option("--no-vision", help="Read no images; the encoder's weights then take no memory.")
]
ImageHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-image-host",
        help="A host whose images may be fetched, e.g. upload.wikimedia.org, *.example.com, or * for all.",
    ),
]


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

class PrecisionName(StrEnum):
    bf16 = "bf16"
    fp8 = "fp8"


class PrefillName(StrEnum):
    w4a16 = "w4a16"
    w4a4 = "w4a4"


PrefillChoice = Annotated[
    PrefillName,
    typer.Option("--prefill", help="What prompts multiply the experts with; w4a4: NVFP4, on a GB10, less exact."),
]
DenseChoice = Annotated[
    PrecisionName, typer.Option("--dense", help="How attention's projections and the output head are held.")
]
KvChoice = Annotated[
    PrecisionName, typer.Option("--kv", help="How the cached latents are held; fp8 takes 0.6 of the memory.")
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


def read_api_keys(keys: list[str] | None, file: Path | None) -> tuple[str, ...]:
    """All keys that were given. Raises ConfigError for a file without one, and for keys that no header can hold."""
    found = list(keys or ())
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file: {file} cannot be read: {error}.") from error
        in_file = [line for line in lines if line and not line.startswith("#")]
        if not in_file:
            raise ConfigError(f"--api-key-file: {file} holds no key. Write one a line, or leave the flag out.")
        found += in_file
    if not all(re.fullmatch(r"[!-~]+", key) for key in found):
        raise ConfigError("An API key must be ASCII characters without spaces, since it is sent in a header.")
    return tuple(found)


def check_origins(origins: list[str] | None) -> tuple[str, ...]:
    """Raises ConfigError for what no browser sends as an Origin."""
    for origin in origins or ():
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            raise ConfigError(
                f"--cors-origin {origin!r} is no origin. Write scheme, host and port, as in http://localhost:3000."
            )
    return tuple(origins or ())


def check_image_hosts(hosts: list[str] | None) -> tuple[str, ...]:
    """Raises ConfigError for what is no name of a host."""
    for host in hosts or ():
        if host != "*" and not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", host):
            raise ConfigError(
                f"--allow-image-host {host!r} is no name of a host. Write one alone, as in upload.wikimedia.org."
            )
    return tuple(hosts or ())


def engine_config(
    model_path: Path,
    *,
    device: Device = Device.auto,
    kernels: Kernels = Kernels.auto,
    dense: PrecisionName = PrecisionName.bf16,
    kv: PrecisionName = PrecisionName.bf16,
    prefill: PrefillName = PrefillName.w4a16,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    kv_memory: str | None = None,
    kv_dir: Path | None = None,
    kv_dir_size: str | None = None,
    speculative: Speculative = Speculative.auto,
    max_draft_tokens: int = MAX_DRAFT_TOKENS,
    threads: int | None = None,
    reads_images: bool = True,
) -> EngineConfig:
    """The engine's configuration from flags; None leaves the default of config.py."""
    given: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_memory_bytes": None if kv_memory is None else parse_bytes(kv_memory, "--kv-memory"),
        "kv_dir": kv_dir,
        "kv_dir_bytes": None if kv_dir_size is None else parse_bytes(kv_dir_size, "--kv-dir-size"),
        "num_threads": threads,
        "reads_images": reads_images,
    }
    return EngineConfig(
        model_path=model_path,
        device=device.value,
        kernels=kernels.value,
        dense=dense.value,
        kv=kv.value,
        prefill=prefill.value,
        max_model_len=max_model_len,
        max_slowdown=max_slowdown or None,
        speculative=speculative.value,
        max_draft_tokens=max_draft_tokens,
        **{name: value for name, value in given.items() if value is not None},
    )
