"""What PyTorch and Triton say of the GPU: `python -m sparkstral.doctor.device`, one JSON object on standard output.

A process of its own: the doctor must live when a library in it does not, and it brings no tensors itself. Owns the
facts; what they mean is gpu_checks.py's.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_GB10_PTX = ".version 8.8\n.target sm_121a\n.address_size 64\n.visible .entry nothing() { ret; }\n"
_TIMEOUT_S = 60.0


def main() -> None:
    facts: dict[str, Any] = {}
    try:
        import torch
    except ImportError as error:
        facts["failure"] = f"PyTorch cannot be imported: {error}"
    else:
        facts["torch"], facts["cuda"] = torch.__version__, torch.version.cuda
        if torch.cuda.is_available():
            facts["gpu"] = torch.cuda.get_device_name()
            facts["capability"] = list(torch.cuda.get_device_capability())
            facts["architectures"] = torch.cuda.get_arch_list()
    facts |= _triton()
    if "gpu" in facts:
        from sparkstral.bench.timing import probe_bandwidth

        try:
            facts["bandwidth_bytes_per_s"] = probe_bandwidth().read_bytes_per_s
        except RuntimeError as error:  # its memory is full, say: what else was found must not be lost
            facts["failure"] = f"the bandwidth could not be measured: {str(error).splitlines()[0]}"
    print(json.dumps(facts))


def _triton() -> dict[str, Any]:
    try:
        import triton
        from triton.backends.nvidia.compiler import get_ptxas
    except ImportError:
        return {}
    facts = {"triton": triton.__version__}
    try:
        ptxas = get_ptxas(121)
    except Exception as error:  # of whatever class this version has for one that is not there
        return facts | {"ptxas_error": f"Triton finds no ptxas: {error}"}
    return facts | {"ptxas": ptxas.path, "ptxas_error": _refusal(ptxas.path)}


def _refusal(ptxas: str) -> str:
    """What this ptxas has against GB10's architecture; nothing if it assembles for it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nothing.ptx"
        source.write_text(_GB10_PTX)
        command = [ptxas, "--gpu-name=sm_121a", "-o", str(source.with_suffix(".cubin")), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
    return next(iter((done.stderr + done.stdout).strip().splitlines()), "it failed") if done.returncode else ""


if __name__ == "__main__":
    main()
