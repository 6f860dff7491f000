"""Every variant of every kernel compiles for the devices that are served, and fits them; packs can be carried.

GB10 (SM 12.1) has 99 KiB of shared memory a block, an H200 227 KiB. A register that spills costs more than any
tuning gains. No GPU is needed; compiling happens in processes without the interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


def run(*command: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if cache is not None:
        environment["TRITON_CACHE_DIR"] = str(cache)
    return subprocess.run([sys.executable, "-W", "ignore", *command], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("target", ["sm_121a", "sm_90a"])
def test_every_shipped_variant_compiles_and_fits(target: str, tmp_path: Path) -> None:
    assert TRITON >= (3, 8), f"Triton {triton.__version__} does not know SM 12.1's block-scaled products; 3.8 does"
    report = tmp_path / "report.json"
    done = run("-m", "sparkstral.kernels.build", "--target", target, "--json", str(report))
    assert report.exists(), done.stderr[-4000:]
    rows = json.loads(report.read_text())["rows"]
    assert {row["operation"] for row in rows} >= {"moe_experts", "mla_decode", "mla_prefill", "bf16_linear"}
    assert [f"{row['operation']} {row['name']}: {row['faults']}" for row in rows if row["faults"]] == []
    assert done.returncode == 0


LAUNCHES = """
import json
from sparkstral.bench.cases import all_cases
from sparkstral.bench.cases.setting import absent_setting
from sparkstral.kernels import build, pack

found = []
for capability in (90, 121):
    build.stand_in(capability)
    specs = list(build.all_specs(capability))
    for _, spec in specs:
        spec.function.device_caches.clear()
    keys = {launch.key for launch in build.wanted(capability)}
    for _, spec in specs:
        spec.function.device_caches.clear()
    for case in all_cases(absent_setting(divmod(capability, 10))):
        if case.variant != "shipped":
            continue
        with pack.recorded(runs=False) as launches:
            case.prepare(0).calls[0]()
        found += [
            f"{case.title}: {launch.function} {launch.constants} {launch.types}"
            for launch in launches
            if launch.key not in keys
        ]
print(json.dumps(found))
"""


def test_what_is_launched_is_what_is_shipped() -> None:
    """Every launch of the benchmark's cases, at the model's sizes, is a variant that the gate above has compiled and
    that a pack holds: types, constants and options alike."""
    done = run("-c", LAUNCHES)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == []


CARRIED = """
import json, sys
from pathlib import Path
from triton import knobs
from sparkstral.kernels import build, pack

build.stand_in(121)
with pack.recorded(runs=False) as launches:
    for spec in build.specs_of("rms_norm", 121):
        build.warm_up(spec)
installed = pack.install(Path(sys.argv[1]), launches)
hits = []
knobs.compilation.listener = lambda **said: hits.append(said["cache_hit"])
for spec in build.specs_of("rms_norm", 121):
    build.warm_up(spec)
print(json.dumps([installed.num_ready, installed.num_missing, hits]))
"""


def test_a_launch_finds_what_a_pack_brought_to_another_cache(tmp_path: Path) -> None:
    """Nothing is left to compile: the keys that `install` computes are those of a launch."""
    made = run(
        "-m", "sparkstral.kernels.build", "--target", "sm_121a", "--workers", "1", "--output", str(tmp_path / "pack"),
        "rms_norm", cache=tmp_path / "here",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-4000:]
    carried = run("-c", CARRIED, str(tmp_path / "pack"), cache=tmp_path / "there")
    num_ready, num_missing, hits = json.loads(carried.stdout)
    assert num_missing == 0
    assert num_ready == len(hits) > 3
    assert all(hits)


def test_a_pack_without_a_variant_says_so(tmp_path: Path) -> None:
    carried = run("-c", CARRIED, str(tmp_path), cache=tmp_path / "there")
    num_ready, num_missing, hits = json.loads(carried.stdout)
    assert (num_ready, num_missing) == (0, len(hits))
    assert not any(hits)
