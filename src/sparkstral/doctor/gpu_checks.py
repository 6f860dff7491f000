"""Driver, CUDA, Triton, ptxas, compiled kernels, bandwidth, heat: what the kernels need of GPU and software.

Sources of the numbers stand beside them; "reported" is by users of DGX Sparks in public issue trackers.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from sparkstral.doctor.check import Check, absent, bad, ok, warn
from sparkstral.doctor.machine import Machine, is_writable
from sparkstral.memory.holders import LARGE_BYTES, gpu_holders
from sparkstral.units import format_bytes

GB10 = (12, 1)
# By CUDA capability: the oldest Triton whose code is right for it. The same as kernels/select, which brings tensors.
MIN_TRITON = {(9, 0): (3, 6), GB10: (3, 8)}
MIN_DRIVER = 580  # the first for CUDA 13
AVOIDED_DRIVER = 590  # CUDA graphs deadlock, reported
GB10_BYTES_PER_S = 273e9  # of the data sheet
GOOD_SHARE = 0.75  # 229 to 240 GB/s were reported: 15 % below them
BAD_SHARE = 0.4
ONE_TOKEN_BYTES = 5.68e9  # of weights that one token reads, everything but the experts in bfloat16 (docs/model.md)
HOT_C = 85
# Bits of clocks_event_reasons.active (NVML): hardware slowdown, thermal in hardware and software, power brake.
_SLOWED = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
_PTXAS_OVERRIDES = ("TRITON_PTXAS_BLACKWELL_PATH", "TRITON_PTXAS_PATH")
_INSTALL = "Install the GPU build: make clean, then make serve, which takes torch 2.14 with CUDA 13."


def check_driver(machine: Machine) -> Check:
    name, version = "driver", machine.gpu_query.get("driver_version", "")
    if not version:
        if machine.exists("dev/nvidiactl") or machine.exists("proc/driver/nvidia/version"):
            return bad(
                name, "an NVIDIA driver is loaded, and nvidia-smi does not answer",
                "Restart the machine; in a container, start it with --gpus all and the utility capability.",
            )  # fmt: skip
        return absent(name, "no NVIDIA driver: only the demo can be served here, on the CPU")
    major = int(version.split(".")[0]) if version.split(".")[0].isdigit() else 0
    found = f"{version}, {machine.gpu_query.get('name', 'GPU')}"
    if major < MIN_DRIVER:
        return bad(name, found, f"CUDA 13 needs driver {MIN_DRIVER} or newer: sudo apt install nvidia-driver-580-open")
    if major == AVOIDED_DRIVER:
        return warn(name, found, "CUDA graphs were reported to deadlock with 590; 580 is what DGX OS ships.")
    return ok(name, found)


def check_cuda(machine: Machine) -> Check:
    name, facts = "PyTorch and CUDA", machine.device
    if facts.torch is None:
        return bad(name, facts.failure or "PyTorch is not installed", _remedy_of_failure(facts.failure))
    found = f"torch {facts.torch}, CUDA {facts.cuda or 'none'}"
    if facts.gpu is None:
        if machine.gpu_query:
            return bad(name, f"{found}: it sees no GPU, and nvidia-smi does", _INSTALL)
        return absent(name, f"{found}; no GPU")
    if facts.capability not in MIN_TRITON:
        return bad(
            name, f"{found}; {facts.gpu} has capability {facts.capability}",
            "The kernels are made for 12.1 (GB10) and 9.0 (H100, H200). --kernels reference computes without them, "
            "many times slower and in four times the memory.",
        )  # fmt: skip
    major, minor = facts.capability
    fitting = {f"sm_{major}{digit}" for digit in range(minor + 1)} | {f"sm_{major}{minor}a"}
    if facts.architectures and not fitting & set(facts.architectures):
        return bad(
            name, f"{found} holds binaries for {' '.join(facts.architectures)}; {facts.gpu} is sm_{major}{minor}",
            _INSTALL,
        )  # fmt: skip
    return ok(name, f"{found}, {facts.gpu}, capability {major}.{minor}")


def _remedy_of_failure(failure: str | None) -> str:
    if failure and ("dl-tls" in failure or "_dl_add_to_slotinfo" in failure):
        return (
            "The C library of this container and the host's driver libraries do not go together (known of the image "
            "hellohal2064/vllm-dgx-spark-gb10). Use this project's own image: sparkstral deploy docker."
        )
    return _INSTALL


def check_triton(machine: Machine) -> Check:
    name, facts = "Triton", machine.device
    if facts.triton is None:
        if facts.gpu is None:
            return absent(name, "not installed, and not needed without a GPU")
        return bad(name, "not installed", _INSTALL)
    needed = MIN_TRITON.get(facts.capability or GB10, MIN_TRITON[GB10])
    parts = facts.triton.split(".")
    if tuple(int(part) for part in parts[:2] if part.isdigit()) < needed:
        wanted = ".".join(map(str, needed))
        if facts.gpu is None:
            return warn(name, f"{facts.triton}; a GB10 needs {wanted}", _INSTALL)
        return bad(name, f"{facts.triton}; {facts.gpu} needs {wanted} or newer", _INSTALL)
    return ok(name, facts.triton)


def check_ptxas(machine: Machine) -> Check:
    name, facts = "ptxas for sm_121a", machine.device
    if facts.ptxas_error is None:
        return absent(name, "Triton is not there to bring one")
    if not facts.ptxas_error:
        return ok(name, f"{facts.ptxas} assembles for sm_121a")
    override = next((key for key in _PTXAS_OVERRIDES if machine.environ.get(key)), "")
    remedy = f"Unset {override}, so that Triton's own is used." if override else _INSTALL
    found = f"{facts.ptxas or 'none'}: {facts.ptxas_error}"
    if facts.capability == GB10:
        return bad(name, found, remedy)
    return warn(name, f"{found} (this machine is no GB10)", remedy)


def check_kernel_cache(machine: Machine) -> Check:
    name = "compiled kernels"
    home = Path(machine.environ.get("HOME", "/"))
    given = machine.environ.get("TRITON_CACHE_DIR")
    folder = Path(given) if given else Path(machine.environ.get("TRITON_HOME") or home) / ".triton" / "cache"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not is_writable(existing):
        return bad(
            name, f"{folder} cannot be written", "Make it writable, or name another folder with TRITON_CACHE_DIR.",
        )  # fmt: skip
    pack = machine.package / "kernels" / "packs" / "sm_121a" / "manifest.json"
    shipped = None
    with suppress(OSError, ValueError):
        shipped = json.loads(pack.read_text()).get("triton")
    cached = sum(1 for _ in folder.glob("*")) if folder.is_dir() else 0
    found = f"{cached} in {folder}" + (f"; a pack for sm_121a by Triton {shipped}" if shipped else "; no pack")
    if machine.device.gpu is None:
        return absent(name, f"{found}; no GPU to compile for")
    if not cached and shipped != machine.device.triton:
        return warn(name, found, "The first start compiles them beside loading, for some minutes; later ones do not.")
    return ok(name, found)


def check_bandwidth(machine: Machine) -> Check:
    name, facts = "memory bandwidth", machine.device
    if facts.bandwidth_bytes_per_s is None:
        return absent(name, (facts.gpu and facts.failure) or "no GPU to measure it with")
    found = f"{facts.bandwidth_bytes_per_s / 1e9:,.0f} GB/s read on {facts.gpu}"
    if facts.capability != GB10:
        return ok(name, found)
    share = facts.bandwidth_bytes_per_s / GB10_BYTES_PER_S
    rate = facts.bandwidth_bytes_per_s / ONE_TOKEN_BYTES
    found += f", {share:.0%} of 273: at most {rate:.0f} tok/s for one client (projected)"
    remedy = (
        "The machine is in a low power state, or something else reads memory. Stop other programs; then shut down, "
        "unplug the supply for a minute, and start again: this cured it for others. Use the supply that came with it."
    )
    if share < BAD_SHARE:
        return bad(name, found, remedy)
    return ok(name, found) if share >= GOOD_SHARE else warn(name, found, remedy)


def check_heat(machine: Machine) -> Check:
    name, query = "clocks, heat, power", machine.gpu_query
    if "temperature.gpu" not in query:
        return absent(name, "nvidia-smi does not tell the temperature")
    units = {"clocks.sm": "MHz", "clocks.max.sm": "MHz at most", "power.draw": "W", "pstate": ""}
    found = [f"{query['temperature.gpu']} °C"]
    found += [f"{query[field]} {unit}".strip() for field, unit in units.items() if field in query]
    reasons = query.get("clocks_event_reasons.active", "0")
    bits = int(reasons, 16) if reasons.lower().startswith("0x") else 0
    slowed = [why for bit, why in _SLOWED.items() if bits & bit]
    hot = float(query["temperature.gpu"]) >= HOT_C
    if slowed or hot:
        return warn(
            name, ", ".join(found + [f"slowed by: {why}" for why in slowed]),
            "Give it air and check the supply; sudo nvidia-smi -lgc 0,2000 keeps it from switching off by heat, at "
            "little cost, as the memory sets the pace.",
        )  # fmt: skip
    return ok(name, ", ".join(found))


def check_others_on_gpu(machine: Machine) -> Check:
    name = "others on the GPU"
    if not machine.gpu_query:
        return absent(name, "no GPU")
    holders = gpu_holders(machine.root / "proc", machine.run)
    large = [holder for holder in holders if holder.num_bytes >= LARGE_BYTES]
    if large:
        return warn(name, ", ".join(map(str, large)), "Stop another large model first; `plan --live` says what fits.")
    held = format_bytes(sum(holder.num_bytes for holder in holders))
    return ok(name, f"{len(holders)} processes with {held} that the driver tells of")
