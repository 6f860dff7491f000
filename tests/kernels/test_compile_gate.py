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


MODEL = """
import json, torch
from dataclasses import replace
from sparkstral.kernels import build, pack
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.mla_prefill.triton_kernel import plan_passes
from sparkstral.model.config import ModelConfig
from sparkstral.model.fast_batch import AbsorbedGroup, ExpandedGroup, FastBatch
from sparkstral.model.fast_mistral4 import FastLimits, FastMistral4
from sparkstral.model.weights import *
from sparkstral.runner.latent_pool import allocate_latent_pool

meta = torch.device("meta")


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device=meta)


def ints(*shape, dtype=torch.int32):
    return empty(*shape, dtype=dtype)


def nvfp4(*shape, scales):
    *lead, rows, columns = shape
    packed, scale = ints(*lead, rows, columns // 2, dtype=torch.uint8), empty(*lead, rows, columns // 16)
    return Nvfp4Weight(packed, scale.to(torch.float8_e4m3fn), empty(*scales, dtype=torch.float32))


def dense(*shape):
    return DenseWeight(empty(*shape))


config = ModelConfig(4096, 1, 131072, 32, 1024, 128, 2048, 1e-6, 1e4, 128.0, 32.0, 1.0, 8192, 0.1, 8192, 1048576)
attention = AttentionWeights(
    dense(1024, 4096), empty(1024), dense(4096, 1024), dense(320, 4096), empty(256), dense(6144, 256), dense(4096, 4096)
)
stacked = StackedExperts(
    nvfp4(129, 4096, 4096, scales=(129, 2)), nvfp4(129, 4096, 2048, scales=(129,))
)
layer = LayerWeights(empty(4096), attention, empty(4096), empty(128, 4096), None, None, stacked)
weights = ModelWeights(empty(131072, 4096), (layer,), empty(4096), dense(131072, 4096))


def absorbed(requests):
    return AbsorbedGroup(slice(0, requests), ints(requests, 500), ints(requests + 1), ints(requests), 1)


def launch_all(kernels, held):
    limits = FastLimits(32, 32768, 32768, 2048, 2048)
    model = FastMistral4(config, weights, kernels, limits, meta, torch.bfloat16, held)
    pool = allocate_latent_pool(1, 100, 64, meta, torch.bfloat16, held)

    def forward(tokens, groups, expanded, rows):
        ids, places = (ints(tokens, dtype=torch.int64) for _ in range(2))
        batch = FastBatch(ids, ints(tokens), ints(32, dtype=torch.int64), places, places, groups, expanded, rows)
        model.forward(batch, pool)

    for requests in (1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 32):
        forward(requests, (absorbed(requests),), None, None)
        forward(requests, (absorbed(requests),), None, ints(requests, dtype=torch.int64))
    for queries in (100, 300, 2048):
        table = torch.zeros(1, 40, dtype=torch.int64).to(meta)
        passes = plan_passes(
            table, (0, queries), (queries,), block_size=64, max_keys=32768, config=kernels.prefill
        )
        forward(queries, (), ExpandedGroup(slice(0, queries), passes), ints(1, dtype=torch.int64))
        behind = ExpandedGroup(slice(4, queries + 4), passes)
        forward(queries + 4, (absorbed(4),), behind, ints(5, dtype=torch.int64))


found = set()
for capability in (90, 121):
    build.stand_in(capability)
    specs = list(build.all_specs(capability))
    for _, spec in specs:
        spec.function.device_caches.clear()
    keys = {launch.key for launch in build.wanted(capability)}
    for _, spec in specs:
        spec.function.device_caches.clear()
    with pack.recorded(runs=False) as launches:
        for held in ("bf16", "fp8"):
            launch_all(KernelConfigs.shipped(divmod(capability, 10)), held)
    found |= {
        f"{capability} {launch.function} {launch.constants} {launch.types}"
        for launch in launches
        if launch.key not in keys
    }
print(json.dumps(sorted(found)))
"""


def test_what_the_model_launches_is_what_is_shipped() -> None:
    """At every batch size of a decode step, and with prompts of several lengths, all in bfloat16 and all in FP8: a pack
    leaves nothing to compile."""
    done = run("-c", MODEL)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == []


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
