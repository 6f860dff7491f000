"""Compile Triton kernels for a device that is not here, and say what they take of it.

    python -m tests.kernels.build 121 mla_decode [NAME PART]

prints a line of JSON a variant: shared memory, spills, registers, missing instructions. A process of its own: a
kernel that was imported for the interpreter cannot be compiled.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from sparkstral.kernels.kernel_spec import KernelSpec


def build(spec: KernelSpec, capability: int) -> dict[str, object]:
    """What a compiled variant takes: {"name", "shared_bytes", "spill_bytes", "registers", "missing"}."""
    names = spec.function.arg_names
    types = {name: spec.signature.get(name, "constexpr") for name in names}
    constants = {name: spec.constants[name] for name in names if name in spec.constants}
    # What the launcher knows of tensors: their addresses are multiples of 16.
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if types[name].startswith("*")}
    source = ASTSource(spec.function, types, constexprs=constants, attrs=aligned)
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=spec.options)
    ptx = kernel.asm["ptx"]
    usage = _ptxas_usage(ptx, capability)
    return {
        "name": spec.name,
        "shared_bytes": kernel.metadata.shared,
        "spill_bytes": sum(int(n) for n in re.findall(r"(\d+) bytes spill", usage)),
        "registers": max(int(n) for n in re.findall(r"Used (\d+) registers", usage)),
        "missing": [needed for needed in spec.needs if needed not in ptx],
    }


def _ptxas_usage(ptx: str, capability: int) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "kernel.ptx"
        file.write_text(ptx)
        target = [f"--gpu-name=sm_{capability}a", "-o", str(Path(scratch) / "kernel")]
        command = [get_ptxas(capability).path, "-v", *target, str(file)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def main() -> None:
    capability, operation = int(sys.argv[1]), sys.argv[2]
    module = importlib.import_module(f"sparkstral.kernels.{operation}.triton_kernel")
    for spec in module.specs(module.CONFIGS[divmod(capability, 10)]):
        if all(part in spec.name for part in sys.argv[3:]):
            print(json.dumps(build(spec, capability)), flush=True)


if __name__ == "__main__":
    main()
