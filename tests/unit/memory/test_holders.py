from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkstral.memory.holders import Holder, advice, gpu_free_bytes, gpu_holders, host_holders
from sparkstral.units import GiB, MiB


def process(proc: Path, process_id: int, command: Sequence[str], kib: int = 0) -> None:
    folder = proc / str(process_id)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("".join(word + "\0" for word in command))
    (folder / "comm").write_text("kernel-thread\n")
    (folder / "status").write_text(f"Name:\tx\nVmRSS:\t{3 * kib} kB\nRssAnon:\t{kib} kB\nRssShmem:\t{kib} kB\n")


def test_the_largest_come_first_and_arguments_are_not_told(tmp_path: Path) -> None:
    process(tmp_path, 11, ["/usr/bin/python3.12", "-u", "-m", "vllm.entrypoints", "--api-key", "secret"], 8 << 20)
    process(tmp_path, 12, ["/opt/bin/ollama", "serve", "secret"], 9 << 20)
    process(tmp_path, 13, ["python3", "-c", "secret"], 1 << 20)
    process(tmp_path, 14, [], 1 << 19)
    process(tmp_path, 15, ["small"], 100)
    (tmp_path / "meminfo").write_text("")
    (tmp_path / "16").mkdir()  # it ended meanwhile
    found = host_holders(tmp_path)
    assert [holder.name for holder in found] == ["ollama", "python3.12 vllm.entrypoints", "python3", "kernel-thread"]
    assert found[0] == Holder(12, "ollama", 18 * GiB, "host")
    assert "secret" not in repr(found)
    assert len(host_holders(tmp_path, most=2)) == 2


def test_processes_on_the_gpu_and_another_large_model(tmp_path: Path) -> None:
    process(tmp_path, 21, ["/usr/bin/python3", "/srv/serve.py", "x"])
    process(tmp_path, 22, ["/usr/bin/Xorg"])
    listed = {"compute": "22, 300\n21, 67584\n23, [N/A]\n\n", "free": "[N/A]\n"}

    def run(command: Sequence[str]) -> str:
        return listed["free" if "memory.free" in command[1] else "compute"]

    found = gpu_holders(tmp_path, run)
    assert found[0] == Holder(21, "python3 serve.py", 66 * GiB, "GPU")
    assert [holder.process_id for holder in found] == [21, 22, 23]
    named = "python3 serve.py (pid 21, 66.00 GiB of GPU memory)"
    assert advice(found) == f"Another large model must be stopped first: {named}."
    assert advice(found, own_process_ids=[21]) == ""
    assert gpu_free_bytes(run) is None


def test_a_gpu_with_memory_of_its_own_says_what_is_free() -> None:
    assert gpu_free_bytes(lambda _: "141000\n") == 141_000 * MiB


def test_without_nvidia_smi_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert gpu_holders(tmp_path, lambda _: "") == ()
    assert gpu_free_bytes(lambda _: "") is None
