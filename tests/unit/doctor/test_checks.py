"""Every check of the doctor on machines that are well, ill, and silent: fakes at the machine's edge, nothing else."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sparkstral.doctor import gpu_checks, host_checks, model_checks
from sparkstral.doctor.check import Check, Verdict
from sparkstral.doctor.disk import read_speed
from sparkstral.doctor.examine import ON_MACHINE
from sparkstral.doctor.machine import DeviceFacts, Machine, ask_device, read_facts
from tests.support.tekken import write_tekken
from tests.support.tiny_checkpoint import write_native
from tests.unit.cli.conftest import Run

SPARK = DeviceFacts(
    torch="2.14.0+cu130", cuda="13.0", gpu="NVIDIA GB10", capability=(12, 1), architectures=("sm_90", "sm_120"),
    triton="3.8.0", ptxas="/triton/ptxas-blackwell", ptxas_error="", bandwidth_bytes_per_s=235e9,
)  # fmt: skip
NO_GPU = DeviceFacts(torch="2.13.0+cpu")
SMI = "NVIDIA GB10, 580.95.05, P0, 52, 11.2, 2405, 3003, 0x0000000000000000\n"
MEMINFO = {
    "MemTotal": 125_000_000, "MemAvailable": 118_000_000, "Cached": 2_000_000, "SwapTotal": 16_000_000,
    "SwapFree": 16_000_000,
}  # fmt: skip


def smi(line: str = SMI, apps: str = "") -> Callable[[Sequence[str]], str]:
    def run(command: Sequence[str]) -> str:
        if command[0] == "timedatectl":
            return "yes\n"
        return apps if "compute-apps" in command[1] else line

    return run


def silent(command: Sequence[str]) -> str:
    return ""


class Fakes:
    """Makes machines: a DGX Spark that is well, but for what is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def machine(
        self,
        files: dict[str, str] | None = None,
        meminfo: dict[str, int] | None = None,
        cached: bool = True,
        **fields: Any,
    ) -> Machine:
        root, cache = self.folder / "root", self.folder / "triton"
        (root / "proc").mkdir(parents=True)
        lines = MEMINFO | (meminfo or {})
        if meminfo != {}:
            (root / "proc" / "meminfo").write_text("".join(f"{key}: {value} kB\n" for key, value in lines.items()))
        for name, text in (files or {}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        cache.mkdir()
        if cached:
            (cache / "kernel").mkdir()
        device = fields.pop("device", SPARK)
        environ = {"HOME": str(self.folder), "TRITON_CACHE_DIR": str(cache), **fields.pop("environ", {})}
        given: dict[str, Any] = {
            "root": root, "environ": environ, "run": smi(), "ask_device": lambda: device,
            "package_version": lambda name: "1.13.1", "knows_tekken_v15": lambda: True, "glibc_version": lambda: "2.39",
            "python": (3, 12), "system": "Linux aarch64", "now": lambda: datetime(2026, 12, 2, tzinfo=UTC).timestamp(),
            "package": self.folder / "package",
        }  # fmt: skip
        return Machine(**(given | fields))


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path)


def facts(**changed: Any) -> DeviceFacts:
    return replace(SPARK, **changed)


TLS = "Inconsistency detected by ld.so: dl-tls.c: 618: _dl_add_to_slotinfo: Assertion `idx == 0' failed!"
GPU_IN_HOST = {"proc/driver/nvidia/version": "NVRM", ".dockerenv": ""}
IN_USE = "1234, 60000\n"
CASES: list[tuple[Callable[[Machine], Check], dict[str, Any], Verdict, str]] = [
    (host_checks.check_python, {"python": (3, 10)}, Verdict.BAD, "Python 3.10"),
    (host_checks.check_python, {"system": "Darwin arm64"}, Verdict.WARN, "Darwin"),
    (host_checks.check_libc, {"glibc_version": lambda: None}, Verdict.BAD, "no glibc"),
    (host_checks.check_libc, {"glibc_version": lambda: "2.27"}, Verdict.BAD, "glibc 2.27"),
    (host_checks.check_libc, {"device": DeviceFacts(failure=TLS)}, Verdict.BAD, "dl-tls.c"),
    (host_checks.check_libc, {"files": GPU_IN_HOST}, Verdict.BAD, "the container no GPU"),
    (host_checks.check_libc, {"files": {"proc/1/cgroup": "0::/docker/abc"}}, Verdict.OK, "in a container (docker)"),
    (host_checks.check_libc, {"files": {"run/.containerenv": ""}}, Verdict.OK, "in a container (podman)"),
    (host_checks.check_mistral_common, {"package_version": lambda name: None}, Verdict.BAD, "not installed"),
    (host_checks.check_mistral_common, {"knows_tekken_v15": lambda: False}, Verdict.BAD, "does not know tekken v15"),
    (gpu_checks.check_driver, {"run": smi(SMI.replace("580.95.05", "570.1"))}, Verdict.BAD, "570.1"),
    (gpu_checks.check_driver, {"run": smi(SMI.replace("580.95.05", "590.44"))}, Verdict.WARN, "590.44"),
    (gpu_checks.check_driver, {"run": silent}, Verdict.ABSENT, "no NVIDIA driver"),
    (gpu_checks.check_driver, {"run": silent, "files": GPU_IN_HOST}, Verdict.BAD, "nvidia-smi does not answer"),
    (gpu_checks.check_cuda, {"device": NO_GPU}, Verdict.BAD, "it sees no GPU, and nvidia-smi does"),
    (gpu_checks.check_cuda, {"device": NO_GPU, "run": silent}, Verdict.ABSENT, "no GPU"),
    (gpu_checks.check_cuda, {"device": DeviceFacts(failure=TLS)}, Verdict.BAD, "dl-tls.c"),
    (gpu_checks.check_cuda, {"device": facts(capability=(8, 9))}, Verdict.BAD, "(8, 9)"),
    (gpu_checks.check_cuda, {"device": facts(architectures=("sm_90", "sm_120a"))}, Verdict.BAD, "sm_120a"),
    (gpu_checks.check_cuda, {"device": facts(architectures=("sm_121a",))}, Verdict.OK, "12.1"),
    (gpu_checks.check_triton, {"device": facts(triton=None)}, Verdict.BAD, "not installed"),
    (gpu_checks.check_triton, {"device": facts(triton="3.6.0")}, Verdict.BAD, "3.6.0"),
    (gpu_checks.check_triton, {"device": facts(triton="3.6.0", capability=(9, 0))}, Verdict.OK, "3.6.0"),
    (gpu_checks.check_triton, {"device": NO_GPU}, Verdict.ABSENT, "not needed without a GPU"),
    (gpu_checks.check_triton, {"device": replace(NO_GPU, triton="3.6.0")}, Verdict.WARN, "a GB10 needs 3.8"),
    (gpu_checks.check_ptxas, {"device": facts(ptxas_error="Value 'sm_121a' is not defined")}, Verdict.BAD, "sm_121a"),
    (gpu_checks.check_ptxas, {"device": facts(ptxas_error="no", capability=(9, 0))}, Verdict.WARN, "no GB10"),
    (gpu_checks.check_ptxas, {"device": NO_GPU}, Verdict.ABSENT, "Triton"),
    (gpu_checks.check_kernel_cache, {"cached": False}, Verdict.WARN, "no pack"),
    (gpu_checks.check_kernel_cache, {"environ": {"TRITON_CACHE_DIR": "/proc/none"}}, Verdict.BAD, "cannot be written"),
    (gpu_checks.check_kernel_cache, {"device": NO_GPU}, Verdict.ABSENT, "no GPU to compile for"),
    (gpu_checks.check_bandwidth, {"device": facts(bandwidth_bytes_per_s=180e9)}, Verdict.WARN, "66% of 273"),
    (gpu_checks.check_bandwidth, {"device": facts(bandwidth_bytes_per_s=60e9)}, Verdict.BAD, "22% of 273"),
    (gpu_checks.check_bandwidth, {"device": NO_GPU}, Verdict.ABSENT, "no GPU"),
    (gpu_checks.check_bandwidth, {"device": facts(bandwidth_bytes_per_s=None, failure="full")}, Verdict.ABSENT, "full"),
    (gpu_checks.check_heat, {"run": smi(SMI.replace(" 52,", " 91,"))}, Verdict.WARN, "91 °C"),
    (gpu_checks.check_heat, {"run": smi(SMI.replace("0x0000000000000000", "0x88"))}, Verdict.WARN, "power brake"),
    (gpu_checks.check_heat, {"run": smi(SMI.replace(" 52,", " [N/A],"))}, Verdict.ABSENT, "temperature"),
    (gpu_checks.check_heat, {"run": smi(SMI.replace(" 11.2,", " [N/A],"))}, Verdict.OK, "2405 MHz"),
    (gpu_checks.check_others_on_gpu, {"run": smi(apps=IN_USE)}, Verdict.WARN, "pid 1234"),
    (gpu_checks.check_others_on_gpu, {"run": silent}, Verdict.ABSENT, "no GPU"),
    (host_checks.check_memory, {"meminfo": {"MemAvailable": 50_000_000}}, Verdict.BAD, "47.68 GiB of 119.21 GiB"),
    (host_checks.check_memory, {"meminfo": {}}, Verdict.ABSENT, "/proc/meminfo"),
    (host_checks.check_swap, {"meminfo": {"SwapFree": 10_000_000}}, Verdict.WARN, "5.72 GiB of 15.26 GiB used"),
    (host_checks.check_swap, {"meminfo": {"SwapTotal": 0, "SwapFree": 0}}, Verdict.OK, "0 B of 0 B"),
    (host_checks.check_swap, {"meminfo": {}}, Verdict.ABSENT, "/proc/meminfo"),
    (host_checks.check_page_cache, {"meminfo": {"Cached": 70_000_000}}, Verdict.WARN, "66.76 GiB"),
    (host_checks.check_page_cache, {"meminfo": {}}, Verdict.ABSENT, "/proc/meminfo"),
    (host_checks.check_hub_cache, {"environ": {"HF_HUB_CACHE": "/proc/none"}}, Verdict.BAD, "cannot be written"),
    (host_checks.check_clock, {"now": lambda: 0.0}, Verdict.BAD, "1970-01-01"),
    (host_checks.check_clock, {"run": lambda command: "no\n"}, Verdict.WARN, "not synchronised"),
    (host_checks.check_clock, {"run": silent}, Verdict.ABSENT, "nobody tells"),
]


@pytest.mark.parametrize(("check", "changed", "verdict", "evidence"), CASES)
def test_what_is_not_as_it_should_be(
    fakes: Fakes, check: Callable[[Machine], Check], changed: dict[str, Any], verdict: Verdict, evidence: str
) -> None:
    found = check(fakes.machine(**changed))
    assert (found.verdict, evidence in found.evidence) == (verdict, True), found
    assert bool(found.remedy) == (verdict in (Verdict.BAD, Verdict.WARN))


@pytest.mark.parametrize("check", ON_MACHINE)
def test_a_spark_that_is_well(fakes: Fakes, check: Callable[[Machine], Check]) -> None:
    found = check(fakes.machine())
    assert found.verdict is Verdict.OK, found
    assert not found.remedy


@pytest.mark.parametrize("check", ON_MACHINE)
def test_each_check_can_complain(check: Callable[[Machine], Check]) -> None:
    assert {verdict for each, _, verdict, _ in CASES if each is check} & {Verdict.BAD, Verdict.WARN}


def test_an_override_of_ptxas_is_named(fakes: Fakes) -> None:
    machine = fakes.machine(device=facts(ptxas_error="no"), environ={"TRITON_PTXAS_PATH": "/usr/bin/ptxas"})
    assert "Unset TRITON_PTXAS_PATH" in gpu_checks.check_ptxas(machine).remedy


def test_a_shipped_pack_makes_a_first_start_short(fakes: Fakes) -> None:
    manifest = fakes.folder / "package" / "kernels" / "packs" / "sm_121a" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"triton": "3.8.0"}))
    assert gpu_checks.check_kernel_cache(fakes.machine(cached=False)).verdict is Verdict.OK


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = host_checks.check_port("127.0.0.1", port)
        assert found.verdict is Verdict.BAD
        assert f"127.0.0.1:{port} is in use" in found.evidence
    assert host_checks.check_port("127.0.0.1", port).verdict is Verdict.OK
    assert host_checks.check_port("192.0.2.1", port).verdict is Verdict.BAD  # an address of nobody
    assert host_checks.check_port("no\0host", port).verdict is Verdict.BAD


# ---- the model's files -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_native(tmp_path / "model", shards=2)
    write_tekken(folder)
    return folder


def test_a_checkpoint_that_is_whole(folder: Path) -> None:
    found = model_checks.check_checkpoint(folder)
    assert found.verdict is Verdict.OK
    assert "2 weight files" in found.evidence
    assert model_checks.check_checkpoint(None).verdict is Verdict.ABSENT


def test_a_shard_of_which_half_came(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    found = model_checks.check_checkpoint(folder)
    assert found.verdict is Verdict.BAD
    assert f"{shard} is truncated" in found.evidence
    assert "download it again" in found.remedy


def test_a_checkpoint_without_its_tokenizer(folder: Path) -> None:
    (folder / "tekken.json").unlink()
    found = model_checks.check_checkpoint(folder)
    assert (found.verdict, found.evidence) == (Verdict.BAD, f"{folder} has no tekken.json")
    assert "hf download" in found.remedy


def _write_notes(folder: Path, digest: Callable[[Path], str]) -> None:
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    for path in folder.glob("*.safetensors"):
        (notes / f"{path.name}.metadata").write_text(f"{'0' * 40}\n{digest(path)}\n1764600000.0\n")


def test_hashes(folder: Path) -> None:
    assert model_checks.check_hashes(folder, deep=False).verdict is Verdict.ABSENT
    assert "nobody wrote down" in model_checks.check_hashes(folder, deep=True).evidence
    _write_notes(folder, model_checks.sha256_of)
    assert model_checks.check_hashes(folder, deep=True).verdict is Verdict.OK
    shard = sorted(folder.glob("*.safetensors"))[0]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert model_checks.check_checkpoint(folder).verdict is Verdict.OK  # which only hashes tell
    found = model_checks.check_hashes(folder, deep=True)
    assert found.verdict is Verdict.BAD
    assert found.evidence.startswith(shard.name)


@pytest.mark.parametrize(
    ("speed", "verdict"), [(5e9, Verdict.OK), (0.4e9, Verdict.WARN), (None, Verdict.ABSENT)]
)
def test_disk(fakes: Fakes, folder: Path, speed: float | None, verdict: Verdict) -> None:
    assert model_checks.check_disk(fakes.machine(read_speed=lambda path: speed), folder).verdict is verdict


def test_the_speed_of_a_disk_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(1000))
    assert read_speed(file) is None  # too small
    assert read_speed(tmp_path / "none") is None
    monkeypatch.setattr("sparkstral.doctor.disk._MIN_BYTES", 1)
    monkeypatch.setattr("sparkstral.doctor.disk._CHUNK_BYTES", 1 << 16)
    file.write_bytes(bytes(1 << 20))
    found = read_speed(file)
    assert found is None or found > 0  # a file system in memory does not read so


# ---- the process that asks the GPU -----------------------------------------------------------------------------


def test_a_library_that_dies_does_not_take_the_doctor_with_it() -> None:
    found = read_facts("", f"something\n{TLS}\n", -6)
    assert found.torch is None
    assert "_dl_add_to_slotinfo" in str(found.failure)


def test_this_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = ask_device()
    assert found.failure is None
    assert found.torch == sys.modules["importlib.metadata"].version("torch")
    assert found.ptxas_error == ""  # the tests' Triton can build for GB10


def test_the_command_says_all_and_ends_with_its_verdict(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, fakes: Fakes
) -> None:
    machine = fakes.machine()
    monkeypatch.setattr("sparkstral.cli.doctor.Machine", lambda: machine)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ill = run("doctor", str(folder), "--port", port, "--json")
    well = run("doctor", str(folder), "--port", port)
    assert (ill.code, well.code) == (1, 0)
    document = json.loads(ill.out)
    assert document["verdict"] == "bad"
    assert [check["name"] for check in document["checks"] if check["verdict"] == "bad"] == ["port"]
    assert all(check["evidence"] for check in document["checks"])
    assert "checkpoint: " in well.out


def test_a_model_that_is_not_downloaded_yet_is_no_fault(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = fakes.machine()
    monkeypatch.setattr("sparkstral.cli.doctor.Machine", lambda: machine)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(fakes.folder / "hub"))
    ended = run("doctor", "owner/name", "--port", "1", "--json")
    found = {check["name"]: check for check in json.loads(ended.out)["checks"]}
    assert found["checkpoint"]["verdict"] == "absent"
    assert "not downloaded yet" in found["checkpoint"]["evidence"]
    assert run("doctor", str(fakes.folder / "nowhere"), "--json").code == 1
