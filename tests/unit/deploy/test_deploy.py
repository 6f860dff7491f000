"""What `sparkstral deploy` writes, held against others' judgement: hadolint, compose's schema, systemd, bash; and what
it does with --apply."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkstral.checkpoint.facts import released_model
from sparkstral.deploy.cluster import Cluster, check_link, plan_cluster, plan_of_node
from sparkstral.deploy.docker import plan_docker, repository
from sparkstral.deploy.steps import Command, Deployment, FileToWrite, apply
from sparkstral.deploy.systemd import Service, plan_systemd
from sparkstral.deploy.vllm import RECIPE_LENGTH, Vllm, plan_of, plan_vllm
from sparkstral.doctor.check import Verdict
from sparkstral.errors import ConfigError, MemoryPlanError, SparkstralError
from tests.unit.cli.conftest import Run
from tools.make_unit_file import FILE, example

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
MODEL = Path("/models/small4")


def bash_accepts(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- files -----------------------------------------------------------------------------------------------------------


def test_hadolint_has_nothing_against_the_dockerfile(tmp_path: Path) -> None:
    hadolint = [str(BIN / "hadolint"), "--no-color"]
    subprocess.run([*hadolint, str(ROOT / "deploy" / "Dockerfile")], check=True)
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp\n")
    assert subprocess.run([*hadolint, str(tmp_path / "Dockerfile")], capture_output=True, check=False).returncode


def test_the_image_is_what_it_claims_to_be() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    final = text.rsplit("FROM ", 1)[1]
    assert "USER 10001" in final
    assert "/readyz" in final[final.index("HEALTHCHECK") :]
    assert not {"gcc", "build-essential", "--platform", "x86_64", "aarch64"} & set(shlex.split(final, comments=True))
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY") and "--from" not in line]
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored


def test_compose_has_the_form_of_its_schema(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    file = ROOT / "deploy" / "compose.yaml"
    subprocess.run([*check, str(file)], check=True, capture_output=True)
    (tmp_path / "bad.yaml").write_text(file.read_text().replace("restart:", "restarts:"))
    assert subprocess.run([*check, str(tmp_path / "bad.yaml")], capture_output=True, check=False).returncode
    service = yaml.safe_load(file.read_text())["services"]["sparkstral"]
    assert (ROOT / "deploy" / service["build"]["context"]).resolve() == ROOT
    assert service["ports"] == ["${SPARKSTRAL_HOST:-127.0.0.1}:${SPARKSTRAL_PORT:-8002}:8002"]
    assert "shm_size" not in service
    assert "ipc" not in service
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def service(tmp_path: Path, **changed: Any) -> Service:
    program = tmp_path / "sparkstral"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    given = Service(program, "owner/model", "127.0.0.1", 8002, "root", Path("/root"))
    return replace(given, **changed)


@pytest.mark.parametrize("per_user", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, per_user: bool) -> None:
    made = service(tmp_path, per_user=per_user)
    unit = made.unit()
    for line in ("Restart=on-failure", "KillMode=mixed", f"ExecStartPre={made.program} doctor owner/model "):
        assert line in unit
    assert f"WantedBy={'default' if per_user else 'multi-user'}.target" in unit
    if shutil.which("systemd-analyze"):  # Debian's and Ubuntu's; the lines above hold elsewhere
        (tmp_path / "sparkstral.service").write_text(unit)
        done = subprocess.run(
            ["systemd-analyze", "verify", str(tmp_path / "sparkstral.service")], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_beside_the_dockerfile_is_the_one_that_is_made() -> None:
    assert FILE.read_text() == example(), "python -m tools.make_unit_file"


def test_what_could_break_out_of_a_unit_is_refused(tmp_path: Path) -> None:
    for name in ("a b", "a\nExecStartPre=/bin/false", "%h"):
        with pytest.raises(ConfigError, match="cannot stand in a systemd unit"):
            service(tmp_path, model=name)


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def test_the_recipe_is_the_published_one() -> None:
    recipe = Vllm(MODEL, mla=False, max_model_len=RECIPE_LENGTH, port=8002)
    script = recipe.script()
    bash_accepts(script)
    assert "FROM avarok/dgx-vllm-nvfp4-kernel:v23" in script
    assert "/opt/venv/bin/pip install --no-cache-dir --upgrade mistral_common" in script
    container = {words[1] for option in recipe.container() if (words := option.words)[0] == "--env"}
    assert container == {
        "VLLM_MLA_DISABLE=1", "VLLM_NVFP4_GEMM_BACKEND=marlin", "VLLM_USE_FLASHINFER_MOE_FP4=0",
        "VLLM_TEST_FORCE_FP8_MARLIN=1", "VLLM_ENGINE_CORE_STARTUP_TIMEOUT=300",
    }  # fmt: skip
    others = {option.flag: option.value for option in recipe.container() if option.flag != "--env"}
    assert others.items() >= {
        "--gpus": "all", "--runtime": "nvidia", "--shm-size": "16g", "--ipc": "host", "--entrypoint": "",
        "--volume": f"{MODEL}:/model:ro",
    }.items()  # fmt: skip
    assert {option.flag: option.value for option in recipe.flags()} == {
        "--host": "0.0.0.0", "--port": "8002", "--served-model-name": "mistral-small-4", "--tokenizer-mode": "mistral",
        "--config-format": "mistral", "--load-format": "mistral", "--tensor-parallel-size": "1",
        "--gpu-memory-utilization": "0.75", "--max-model-len": "40000", "--tool-call-parser": "mistral",
        "--enable-auto-tool-choice": None,
    }  # fmt: skip


@pytest.mark.parametrize("mla", [False, True])
def test_the_script_hands_over_what_vllm_was_asked_about(tmp_path: Path, mla: bool) -> None:
    """The flags that the parser of vLLM has seen (docs/performance/vllm_flags.json) are those that docker gets."""
    chosen = Vllm(MODEL, mla=mla, max_model_len=40_000, port=8002)
    assert all(option.why for option in (*chosen.container(), *chosen.flags()))
    log = tmp_path / "log"
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done >> {log}\necho END >> {log}\n')
    docker.chmod(0o755)
    (tmp_path / "vllm.sh").write_text(chosen.script())
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", str(tmp_path / "vllm.sh")], env=environment, check=True, capture_output=True)
    calls = [call.strip("\n").split("\n") for call in log.read_text().split("END\n") if call]
    run = calls[-1]
    assert run[: run.index("--gpus")] == ["run", "--detach", "--name", "sparkstral-vllm"]
    assert tuple(run[run.index("vllm") :]) == chosen.command()
    assert calls[0][0] == ("rm" if mla else "build")


def test_flags_that_were_checked_are_the_flags_of_today() -> None:
    record = json.loads((ROOT / "docs" / "performance" / "vllm_flags.json").read_text())
    assert record["verdict"] == "ok"
    from tools.check_vllm_flags import commands

    assert {name: each["command"] for name, each in record["commands"].items()} == {
        name: list(words) for name, words in commands()
    }, "python -m tools.check_vllm_flags, beside an installed vLLM"


@pytest.mark.parametrize(
    ("mla", "length", "fits"),
    [
        (False, 40_000, True), (False, 42_000, False), (False, 65_536, False), (True, 131_072, True),
        (True, 262_144, True),
    ],
)  # fmt: skip
def test_lengths_are_held_against_the_plan(mla: bool, length: int, fits: bool) -> None:
    plan = plan_of(Vllm(MODEL, mla=mla, max_model_len=length, port=8002), released_model())
    assert plan.fits == fits
    pool = next(line for line in plan.lines if line.name == "KV pool")
    assert pool.num_bytes == length * (23_040 if mla else 589_824)


def test_a_length_that_does_not_fit_is_refused_with_the_numbers(run: Run) -> None:
    ended = run("deploy", "vllm", "--max-model-len", "42000")
    assert ended.code == 1
    assert "needs 23.07 GiB of KV cache against 22.96 GiB available: short by 0.11 GiB" in ended.err
    assert ended.out == ""
    assert run("deploy", "vllm", "--modern", "--max-model-len", "262144").code == 0


def test_a_snapshot_of_the_hubs_cache_is_mounted_with_what_its_links_point_to() -> None:
    chosen = Vllm(Path("/hub/models--a--b/snapshots/0123"), mla=True, max_model_len=1024, port=8002)
    volume = next(option.value for option in chosen.container() if option.flag == "--volume")
    assert volume == "/hub/models--a--b:/repository:ro"
    assert chosen.command()[2] == "/repository/snapshots/0123"


# ---- cluster ---------------------------------------------------------------------------------------------------------

CLUSTER = Cluster(MODEL, 2, "192.168.100.10", "enp1s0f1np1", 8002)


def test_each_node_has_its_script() -> None:
    scripts = {file.path.name: file.content for file in plan_cluster(CLUSTER, Path("c")).files}
    assert list(scripts) == ["check.sh", "head.sh", "worker.sh", "serve.sh"]
    for script in scripts.values():
        bash_accepts(script)
    assert "ray start --head --block" in scripts["head.sh"]
    assert "--address=192.168.100.10:6379" in scripts["worker.sh"]
    for name in ("head.sh", "worker.sh"):
        assert "NCCL_SOCKET_IFNAME=enp1s0f1np1" in scripts[name]
        assert '"VLLM_HOST_IP=$ip"' in scripts[name]
    assert "--tensor-parallel-size 2" in scripts["serve.sh"]
    assert "--distributed-executor-backend ray" in scripts["serve.sh"]
    assert "--host 127.0.0.1" in scripts["serve.sh"]


def test_a_node_holds_half_the_weights_and_all_of_the_latents() -> None:
    alone, node = plan_of(CLUSTER.vllm, released_model()), plan_of_node(CLUSTER, released_model())

    def sizes(plan: Any) -> dict[str, int]:
        return {line.name: line.num_bytes for line in plan.lines}

    assert sizes(node)["routed experts"] == sizes(alone)["routed experts"] // 2
    assert sizes(node)["KV pool"] == sizes(alone)["KV pool"]


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({"operstate": "up", "speed": "200000", "mtu": "9000"}, Verdict.OK),
        ({"operstate": "up", "speed": "200000", "mtu": "1500"}, Verdict.WARN),
        ({"operstate": "up", "speed": "10000", "mtu": "9000"}, Verdict.BAD),
        ({"operstate": "down", "mtu": "1500"}, Verdict.BAD),
        ({}, Verdict.ABSENT),
    ],
)
def test_links(tmp_path: Path, files: dict[str, str], verdict: Verdict) -> None:
    (tmp_path / "eth0").mkdir()
    for name, text in files.items():
        (tmp_path / "roce0").mkdir(exist_ok=True)
        (tmp_path / "roce0" / name).write_text(text + "\n")
    found = check_link("roce0", tmp_path)
    assert found.verdict is verdict
    assert bool(found.remedy) == (verdict is not Verdict.OK)


@pytest.mark.parametrize("changed", [{"num_nodes": 3}, {"head": "spark-1; rm -rf /"}, {"interface": "a b"}])
def test_a_cluster_that_cannot_be(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(CLUSTER, **changed)


def test_nothing_is_started_on_a_node_without_its_link(run: Run, tmp_path: Path) -> None:
    ended = run(
        "deploy", "cluster", "--head", "192.168.100.10", "--interface", "nolink0", "--role", "head", "--apply",
        "--folder", str(tmp_path / "scripts"),
    )  # fmt: skip
    assert ended.code == 2
    assert "no such interface" in ended.err
    assert not (tmp_path / "scripts").exists()


# ---- showing and doing -----------------------------------------------------------------------------------------------


def test_a_deployment_is_shown_before_it_is_done(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run("deploy", "vllm", "--json")
    assert shown.code == 0
    assert json.loads(shown.out)["applied"] is False
    assert list(tmp_path.iterdir()) == []
    assert "Nothing was done" in run("deploy", "docker").err


def test_applying_writes_and_runs_in_order(tmp_path: Path) -> None:
    ran: list[Sequence[str]] = []
    file = FileToWrite(tmp_path / "a" / "b.sh", "text", 0o755)
    steps = Deployment("t", (file,), (Command(("one",), ""), Command(("two",), "")))

    def run(words: Sequence[str]) -> int:
        assert file.path.read_text() == "text"
        ran.append(words)
        return 0

    apply(steps, run)
    assert ran == [("one",), ("two",)]
    assert file.path.stat().st_mode & 0o111


def test_the_first_failure_ends_it_in_a_sentence(tmp_path: Path) -> None:
    steps = Deployment("t", commands=(Command(("false", "x"), ""), Command(("never",), "")))
    with pytest.raises(SparkstralError, match="`false x` ended with exit code 1; 1 more steps were left out"):
        apply(steps)
    with pytest.raises(SparkstralError, match="cannot be run"):
        apply(Deployment("t", commands=(Command(("no-such-program-here",), ""),)))
    with pytest.raises(SparkstralError, match="Run it with sudo"):
        apply(Deployment("t", files=(FileToWrite(Path("/proc/none/x"), ""),)))


def test_installing_a_unit_and_removing_it(tmp_path: Path) -> None:
    made = service(tmp_path, per_user=True, home=tmp_path)
    there = plan_systemd(made)
    assert there.files[0].path == tmp_path / ".config/systemd/user/sparkstral.service"
    assert [str(command) for command in there.commands] == [
        "systemctl --user daemon-reload", "loginctl enable-linger root",
        "systemctl --user enable --now sparkstral.service",
    ]  # fmt: skip
    back = plan_systemd(made, uninstall=True)
    assert str(back.commands[0]) == "systemctl --user disable --now sparkstral.service"
    assert back.commands[1].words == ("rm", str(made.path))


def test_docker_needs_the_sources(tmp_path: Path) -> None:
    assert repository() == ROOT
    with pytest.raises(ConfigError, match="built from the sources"):
        repository(tmp_path / "lib" / "sparkstral")
    up = plan_docker(ROOT, model="owner/model", host="0.0.0.0", port=8003).commands[-1]
    assert "SPARKSTRAL_MODEL=owner/model" in up.words
    assert up.words[-2:] == ("up", "--detach")


def test_plans_of_vllm_need_no_more_than_they_say() -> None:
    with pytest.raises(MemoryPlanError):
        plan_of(Vllm(MODEL, mla=False, max_model_len=50_000, port=8002), released_model()).require()
    assert plan_vllm(Vllm(MODEL, mla=True, max_model_len=1024, port=1), Path("x.sh")).files[0].mode == 0o755


def test_make_spark_checks_before_it_serves() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--assume-old=.venv/.installed", "spark", "PORT=8003"], cwd=ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    commands = [line for line in done.stdout.splitlines() if "bin/sparkstral" in line]
    assert [command.split()[1] for command in commands] == ["doctor", "serve"]
    assert all(command.endswith("--port 8003") for command in commands)
