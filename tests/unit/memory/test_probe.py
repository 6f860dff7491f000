from __future__ import annotations

from pathlib import Path

import pytest

from sparkstral.errors import MemoryPlanError
from sparkstral.memory.probe import host_memory
from sparkstral.units import GiB


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = f"MemTotal: {128 << 20} kB\nMemFree: 1000 kB\nMemAvailable: {100 << 20} kB\n"


def test_without_control_groups_the_host_says_what_is_available(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/\n"})
    available = host_memory(proc, tmp_path / "cgroup")
    assert available.num_bytes == 100 * GiB
    assert available.source == "MemAvailable"


def test_a_control_group_of_version_2_limits_it_and_its_page_cache_counts_as_free(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/serve/one\n"})
    cgroup = write(
        tmp_path / "cgroup",
        {
            "serve/one/memory.max": "max\n",
            "serve/one/memory.current": "5\n",
            "serve/memory.max": f"{8 * GiB}\n",
            "serve/memory.current": f"{3 * GiB}\n",
            "serve/memory.stat": f"anon {GiB}\ninactive_file {2 * GiB}\nactive_file 7\n",
        },
    )
    available = host_memory(proc, cgroup)
    assert available.num_bytes == 7 * GiB
    assert available.source == f"limit of control group {cgroup / 'serve'}"


def test_a_control_group_of_version_1_limits_it(tmp_path: Path) -> None:
    proc = write(
        tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n"}
    )
    cgroup = write(
        tmp_path / "cgroup",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": f"{2 * GiB}\n",
            "memory/x/memory.limit_in_bytes": f"{4 * GiB}\n",
            "memory/x/memory.usage_in_bytes": f"{GiB}\n",
            "memory/x/memory.stat": "cache 9\ntotal_inactive_file 0\n",
        },
    )
    assert host_memory(proc, cgroup).num_bytes == 3 * GiB


def test_in_a_container_that_sees_only_its_own_group_the_root_counts(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/docker/abc\n"})
    cgroup = write(tmp_path / "cgroup", {"memory.max": f"{2 * GiB}\n", "memory.current": f"{GiB}\n"})
    assert host_memory(proc, cgroup).num_bytes == GiB


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/\n"})
    cgroup = write(tmp_path / "cgroup", {"memory.max": f"{GiB}\n", "memory.current": f"{2 * GiB}\n"})
    assert host_memory(proc, cgroup).num_bytes == 0


@pytest.mark.parametrize("files", [{}, {"meminfo": "MemTotal: 1 kB\n"}])
def test_a_host_that_does_not_tell_is_an_error_with_the_file(tmp_path: Path, files: dict[str, str]) -> None:
    proc = write(tmp_path / "proc", files)
    with pytest.raises(MemoryPlanError, match=r"meminfo does not tell MemAvailable"):
        host_memory(proc, tmp_path / "cgroup")


def test_this_host_has_memory() -> None:
    assert host_memory().num_bytes > 0
