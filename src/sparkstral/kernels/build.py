"""Compile kernels for a device that need not be here: what each takes of it, and a pack that is shipped.

    python -m sparkstral.kernels.build --target sm_121a [--output PACK] [--json FILE]

Owns which variants there are and how one is compiled exactly as its launch would compile it: Triton's own launch path
runs, with a stand-in for the device, so that what is compiled here is what a launch finds in Triton's cache (on this
machine; for others see `pack`). It must be a process without TRITON_INTERPRET: what was imported for the interpreter
cannot be compiled.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.driver import driver
from triton.runtime.jit import MockTensor

from sparkstral.errors import ConfigError
from sparkstral.kernels import pack
from sparkstral.kernels.candidates import axes_of
from sparkstral.kernels.kernel_spec import KernelSpec
from sparkstral.kernels.tuned import as_json, changed

SCHEMA_VERSION = 1
# The most that a block may have. GB10: CUDA programming guide, compute capability 12.x (99 KiB); H200: 9.0 (227 KiB).
SHARED_BYTES = {121: 101_376, 90: 232_448}
_SHIPPED: Mapping[str, Any] = {}  # no changes
_TYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64,
    "u8": torch.uint8, "u16": torch.uint16, "i32": torch.int32, "i64": torch.int64, "fp8e4nv": torch.float8_e4m3fn,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """What a compiled variant takes, and the key under which a pack holds it."""

    operation: str
    name: str
    key: str
    shared_bytes: int
    registers: int
    spill_bytes: int
    needs: tuple[str, ...]
    missing: tuple[str, ...]  # of `needs`, what is not in the PTX
    seconds: float
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the shipped configuration, by dotted path
    error: str = ""  # why it does not compile

    def faults(self, capability: int) -> list[str]:
        """Why it must not be shipped."""
        found = [f"no {instruction} in its PTX" for instruction in self.missing]
        if self.error:
            found.append(f"does not compile: {self.error}")
        if self.spill_bytes:
            found.append(f"{self.spill_bytes} bytes of registers spill")
        if self.shared_bytes > SHARED_BYTES[capability]:
            found.append(
                f"{self.shared_bytes:,} bytes of shared memory; SM {capability} has {SHARED_BYTES[capability]:,}"
            )
        return found


class _AbsentDevice:
    """What Triton's launch path asks its driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def parse_target(text: str) -> int:
    """sm_121a, sm_121 or 12.1 -> 121. Raises ConfigError for what no kernel has a configuration for."""
    match = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)a?", text)
    capability = int(match[1] + match[2]) if match else 0
    if capability not in SHARED_BYTES:
        known = ", ".join(f"sm_{each}a" for each in SHARED_BYTES)
        raise ConfigError(f"--target {text}: the kernels have configurations for {known}.")
    return capability


def operations() -> list[str]:
    """The folders that have a Triton form."""
    return sorted(file.parent.name for file in Path(__file__).parent.glob("*/triton_kernel.py"))


def specs_of(operation: str, capability: int, changes: Mapping[str, Any] = _SHIPPED) -> list[KernelSpec]:
    """What `operation` launches under its shipped configuration with `changes` (kernels/tuned)."""
    module = importlib.import_module(f"sparkstral.kernels.{operation}.triton_kernel")
    found: list[KernelSpec] = module.specs(changed(module.CONFIGS[divmod(capability, 10)], changes))
    return found


def all_specs(capability: int) -> Iterator[tuple[str, KernelSpec]]:
    for operation in operations():
        for spec in specs_of(operation, capability):
            yield operation, spec


def stand_in(capability: int) -> None:
    """From here on, this process compiles for `capability` and cannot launch."""
    driver.set_active(_AbsentDevice(capability))


def warm_up(spec: KernelSpec) -> Any:
    """Compile `spec` as its launch does (or find it in Triton's cache) -> triton's CompiledKernel; None if a
    `jit_cache_hook` says so."""
    arguments = {name: _stand_in_argument(kind) for name, kind in spec.signature.items()}
    pdl = {"launch_pdl": bool(spec.constants["PDL"])} if "PDL" in spec.constants else {}
    return spec.function.warmup(grid=(1,), **arguments, **spec.constants, **spec.options, **pdl)


def wanted(capability: int) -> list[pack.Launch]:
    """The shipped variants as this machine would launch them; compiles nothing. For a process that has not launched
    them yet: Triton asks only once."""
    with pack.recorded(runs=False) as launches:
        for _, spec in all_specs(capability):
            warm_up(spec)
    return launches


def install_shipped(capability: int) -> pack.Installed | None:
    """Take the pack that was shipped for this GPU into Triton's cache, before anything is launched; None without one.
    A launch whose variant the pack lacks compiles as ever, or `build_all` compiles it on all cores."""
    folder = pack.find(capability)
    return None if folder is None else pack.install(folder, wanted(capability))


def _stand_in_argument(kind: str) -> object:
    if kind.startswith("*"):
        return MockTensor(_TYPES[kind[1:]])
    # 17 has no property that a kernel could be specialised on.
    return 1.5 if kind.startswith("fp") else 16 if kind.endswith(":16") else 17


def build(operation: str, spec: KernelSpec, capability: int) -> tuple[Variant, dict[str, bytes]]:
    """Compile one variant; also the two files that a pack holds of it. `stand_in` must have been called."""
    begin = time.perf_counter()
    spec.function.device_caches.clear()  # Triton asks once a process; two names may stand for one variant
    with pack.recorded(runs=True) as launches:
        kernel = warm_up(spec)
    ptx, cubin = kernel.asm["ptx"], kernel.asm["cubin"]
    usage = _ptxas_usage(ptx, capability)
    variant = Variant(
        operation=operation,
        name=spec.name,
        key=launches[-1].key,
        shared_bytes=kernel.metadata.shared,
        registers=max(int(n) for n in re.findall(r"Used (\d+) registers", usage)),
        spill_bytes=sum(int(n) for n in re.findall(r"(\d+) bytes spill", usage)),
        needs=tuple(spec.needs),
        missing=tuple(needed for needed in spec.needs if needed not in ptx),
        seconds=time.perf_counter() - begin,
    )
    return variant, {"cubin": cubin, "json": json.dumps(kernel.metadata._asdict(), default=vars).encode()}


def _ptxas_usage(ptx: str, capability: int) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "kernel.ptx"
        file.write_text(ptx)
        target = [f"--gpu-name=sm_{capability}a", "-o", str(Path(scratch) / "kernel")]
        command = [get_ptxas(capability).path, "-v", *target, str(file)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr


@dataclass(frozen=True, slots=True)
class _Task:
    """A variant: the one of this number among those that an operation has with these changes."""

    operation: str
    index: int
    changes: Mapping[str, Any] = field(default_factory=dict)


def shipped_tasks(capability: int, chosen: Sequence[str] = ()) -> list[_Task]:
    return [
        _Task(operation, index)
        for operation in chosen or operations()
        for index in range(len(specs_of(operation, capability)))
    ]


def candidate_tasks(capability: int, chosen: Sequence[str] = ()) -> list[_Task]:
    """The variants that `tune` may choose and that are not shipped, each once."""
    found = []
    seen = {_identity(spec) for _, spec in all_specs(capability)}
    for axis in axes_of(divmod(capability, 10)):
        if chosen and axis.operation not in chosen:
            continue
        for changes in axis.alternatives:
            for index, spec in enumerate(specs_of(axis.operation, capability, changes)):
                if _identity(spec) not in seen:
                    seen.add(_identity(spec))
                    found.append(_Task(axis.operation, index, changes))
    return found


def _identity(spec: KernelSpec) -> str:
    return repr((spec.function, sorted(spec.signature.items()), sorted(spec.constants.items()), spec.options))


def _build_one(task: _Task, capability: int, output: Path | None) -> Variant:
    stand_in(capability)
    spec = specs_of(task.operation, capability, task.changes)[task.index]
    if task.changes:
        return _build_candidate(task, spec, capability)
    variant, files = build(task.operation, spec, capability)
    if output is not None:
        for suffix, content in files.items():
            (output / f"{variant.key}.{suffix}").write_bytes(content)
    return variant


def _build_candidate(task: _Task, spec: KernelSpec, capability: int) -> Variant:
    """A candidate may fail: that is what is asked."""
    begin, changes = time.perf_counter(), as_json(task.changes)
    try:
        return replace(build(task.operation, spec, capability)[0], changes=changes)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:300]
        seconds = time.perf_counter() - begin
        return Variant(task.operation, spec.name, "", 0, 0, 0, tuple(spec.needs), (), seconds, changes, said)


def build_all(
    capability: int,
    workers: int,
    tasks: Sequence[_Task],
    output: Path | None = None,
    on_variant: Callable[[int, int, Variant], None] = lambda *_: None,
) -> list[Variant]:
    """Compile variants in `workers` processes; with `output`, into a pack. `on_variant` hears (number done, number of
    all, the newest)."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    found = {}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_build_one, task, capability, output): number for number, task in enumerate(tasks)}
        for done, future in enumerate(as_completed(waiting), 1):
            found[waiting[future]] = future.result()
            on_variant(done, len(tasks), future.result())
    variants = [found[number] for number in range(len(tasks))]
    if output is not None:
        pack.write_manifest(output, capability, [asdict(variant) for variant in variants])
    return variants


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True, help="sm_121a (GB10) or sm_90a (H200)")
    parser.add_argument("--output", type=Path, help="the folder of the pack to write")
    parser.add_argument("--json", type=Path, help="a file for the report")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--all-candidates", action="store_true", help="what `tune` may choose, and not what is shipped")
    parser.add_argument("operations", nargs="*", help="only these")
    arguments = parser.parse_args()
    try:
        capability = parse_target(arguments.target)
        if arguments.all_candidates and arguments.output:
            raise ConfigError("--all-candidates makes no pack, which holds shipped kernels alone: leave out --output.")
    except ConfigError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        return 2

    def show(done: int, total: int, variant: Variant) -> None:
        print(f"{done}/{total} {variant.operation}: {variant.name}", flush=True)

    begin = time.perf_counter()
    tasks = (candidate_tasks if arguments.all_candidates else shipped_tasks)(capability, arguments.operations)
    variants = build_all(capability, arguments.workers, tasks, arguments.output, show)
    rows = [{**asdict(variant), "faults": variant.faults(capability)} for variant in variants]
    report = {
        "schema_version": SCHEMA_VERSION,
        "kind": "kernels build",
        "candidates": arguments.all_candidates,
        "target": f"sm_{capability}a",
        "triton": triton.__version__,
        "pack": None if arguments.output is None else str(arguments.output),
        "seconds": time.perf_counter() - begin,
        "rows": rows,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
