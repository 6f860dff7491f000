"""`sparkstral deploy docker | systemd | vllm | cluster`: what would be done, and with --apply its doing."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import shutil
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparkstral.checkpoint.facts import ModelFacts, facts_of_folder, released_model
from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID, is_hub_id
from sparkstral.cli import options
from sparkstral.cli.model_folder import resolve_model
from sparkstral.config import DEFAULT_HOST, DEFAULT_PORT
from sparkstral.deploy.cluster import Cluster, apply_role, check_link, plan_cluster, plan_of_node
from sparkstral.deploy.docker import plan_docker, repository
from sparkstral.deploy.steps import Deployment, apply
from sparkstral.deploy.systemd import Service, plan_systemd
from sparkstral.deploy.vllm import MODERN_LENGTH, RECIPE_LENGTH, UTILIZATION, Vllm, plan_of, plan_vllm
from sparkstral.doctor.check import Verdict
from sparkstral.errors import ConfigError
from sparkstral.hub.download import cache_folder, cached
from sparkstral.hub.repository import revision_of
from sparkstral.memory.plan import MemoryPlan

Model = Annotated[str, typer.Argument(help="A Hub id, the folder of a checkpoint, or demo.", metavar="MODEL")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it. Without it: only show.")]
Uninstall = Annotated[bool, typer.Option("--uninstall", help="The way back.")]
Host = Annotated[str, typer.Option(help="Who may reach it: 127.0.0.1 this machine alone, 0.0.0.0 the network.")]
Port = Annotated[int, typer.Option(min=1, max=65535)]
Utilization = Annotated[float, typer.Option("--gpu-memory-utilization", min=0.3, max=0.9, help="vLLM's share of it.")]
Length = Annotated[int | None, typer.Option("--max-model-len", min=64, help="Checked against the plan.")]


class Role(StrEnum):
    check = "check"
    head = "head"
    worker = "worker"
    serve = "serve"


def docker(
    model: Model = EXAMPLE_HUB_ID,
    host: Host = DEFAULT_HOST,
    port: Port = DEFAULT_PORT,
    uninstall: Uninstall = False,
    apply_it: Apply = False,
    as_json: options.AsJson = False,
) -> None:
    """Serve MODEL in this project's own image, through docker compose."""
    _finish(plan_docker(repository(), model=model, host=host, port=port, uninstall=uninstall), apply_it, as_json)


def systemd(
    model: Model = EXAMPLE_HUB_ID,
    host: Host = DEFAULT_HOST,
    port: Port = DEFAULT_PORT,
    user: Annotated[str | None, typer.Option(help="Who it runs as. Default: whoever calls, also through sudo.")] = None,
    per_user: Annotated[bool, typer.Option("--user-unit", help="A unit of the user's own, without root.")] = False,
    uninstall: Uninstall = False,
    apply_it: Apply = False,
    as_json: options.AsJson = False,
) -> None:
    """Serve MODEL as a systemd unit, from boot on."""
    name = user or os.environ.get("SUDO_USER") or getpass.getuser()
    try:
        home = Path(pwd.getpwnam(name).pw_dir)
    except KeyError:
        raise ConfigError(f"--user {name}: there is no such user on this machine.") from None
    is_name = model == "demo" or (is_hub_id(model) and not Path(model).exists())
    place = model if is_name else str(Path(model).absolute())
    service = Service(_program(), place, host, port, name, home, per_user)
    if apply_it and not per_user and os.geteuid() != 0:
        raise ConfigError(f"{service.path} is root's: run it with sudo, or make a unit of your own with --user-unit.")
    _finish(plan_systemd(service, uninstall=uninstall), apply_it, as_json)


def vllm(
    model: Model = EXAMPLE_HUB_ID,
    modern: Annotated[bool, typer.Option("--modern", help="vLLM 0.28 with native MLA, not the recipe.")] = False,
    max_model_len: Length = None,
    utilization: Utilization = UTILIZATION,
    host: Host = DEFAULT_HOST,
    port: Port = DEFAULT_PORT,
    script: Annotated[Path, typer.Option(help="The script that --apply writes and runs.")] = Path("vllm.sh"),
    apply_it: Apply = False,
    as_json: options.AsJson = False,
) -> None:
    """Serve MODEL through vLLM instead: the public recipe of March 2026, or a vLLM of today (--modern)."""
    length = max_model_len or (MODERN_LENGTH if modern else RECIPE_LENGTH)
    chosen = Vllm(Path(), modern, length, port, host, utilization)
    facts = _facts(model)
    plan = plan_of(chosen, facts)
    _say_plan(plan)
    plan.require()
    chosen = replace(chosen, model_folder=_folder(model, download=apply_it))
    _finish(plan_vllm(chosen, script), apply_it, as_json)


def cluster(
    head: Annotated[str, typer.Option(help="The head's address on the link.")],
    interface: Annotated[str, typer.Option(help="The link's network interface, the same on each node.")],
    model: Model = EXAMPLE_HUB_ID,
    nodes: Annotated[int, typer.Option(help="How many Sparks: 2, 4 or 8.")] = 2,
    max_model_len: Length = None,
    utilization: Utilization = UTILIZATION,
    port: Port = DEFAULT_PORT,
    folder: Annotated[Path, typer.Option(help="Where --apply writes the scripts.")] = Path("cluster"),
    role: Annotated[Role | None, typer.Option(help="With --apply: the part of this node that is run.")] = None,
    apply_it: Apply = False,
    as_json: options.AsJson = False,
) -> None:
    """Serve MODEL on two or more Sparks through vLLM on Ray: a script for each node, and a check of the link."""
    chosen = Cluster(Path(), nodes, head, interface, port, max_model_len or MODERN_LENGTH, utilization)
    plan = plan_of_node(chosen, _facts(model))
    _say_plan(plan)
    plan.require()
    link = check_link(interface)
    print(f"{link.verdict.value}: {link.name}: {link.evidence}. {link.remedy}".rstrip(), file=sys.stderr)
    runs = apply_it and role is not None
    if runs and link.verdict in (Verdict.BAD, Verdict.ABSENT):
        raise ConfigError(f"{link.name}: {link.evidence}. {link.remedy}")
    chosen = replace(chosen, model_folder=_folder(model, download=runs))
    deployment = plan_cluster(chosen, folder)
    if role is not None:
        deployment = replace(deployment, commands=(apply_role(role.value, folder),))
    _finish(deployment, apply_it, as_json)


def _program() -> Path:
    """This program, as a unit calls it."""
    beside = Path(sys.executable).with_name("sparkstral")
    found = beside if beside.exists() else Path(shutil.which("sparkstral") or beside)
    return found.absolute()


def _facts(model: str) -> ModelFacts:
    """Of what is to be served; the released model where nothing is here yet."""
    path = Path(model).expanduser()
    return facts_of_folder(path, model) if path.is_dir() else released_model()


def _folder(model: str, *, download: bool) -> Path:
    path = Path(model).expanduser()
    if path.is_dir() or download or not is_hub_id(model):
        return resolve_model(model).absolute()
    revision = revision_of(model, None)
    place = cache_folder() / ("models--" + model.replace("/", "--")) / "snapshots" / revision
    return cached(model, revision) or place.absolute()


def _say_plan(plan: MemoryPlan) -> None:
    print(plan.table(), file=sys.stderr)


def _finish(deployment: Deployment, apply_it: bool, as_json: bool) -> None:
    if apply_it:
        apply(deployment)
    if as_json:
        print(json.dumps({**deployment.document(), "applied": apply_it}, ensure_ascii=False, indent=1))
        return
    if not apply_it:
        print(deployment.text())
        print("\nNothing was done: this is what --apply does.", file=sys.stderr)
        return
    print(deployment.title)
    for note in deployment.notes:
        print(note)
