"""`deploy docker`: this project's own image from these sources, run by compose.

The files are deploy/Dockerfile and deploy/compose.yaml of the repository; what differs between machines is in a few
variables of the environment, so that nobody has to edit them.
"""

from __future__ import annotations

from pathlib import Path

import sparkstral
from sparkstral.deploy.steps import Command, Deployment
from sparkstral.errors import ConfigError

CONTAINER = "sparkstral"
COMPOSE_FILE = "deploy/compose.yaml"


def repository(package: Path | None = None) -> Path:
    """The checkout that this program runs from. Raises ConfigError if it is installed without one."""
    folder = (package or Path(sparkstral.__file__).parent).parents[1]
    if not (folder / COMPOSE_FILE).is_file():
        raise ConfigError(
            "The image is built from the sources, and this program was installed without them. Run the command of a "
            "checkout: .venv/bin/sparkstral deploy docker there."
        )
    return folder


def plan_docker(folder: Path, *, model: str, host: str, port: int, uninstall: bool = False) -> Deployment:
    compose = ("docker", "compose", "--file", str(folder / COMPOSE_FILE))
    if uninstall:
        return Deployment(
            "Stop the container and remove it; the volumes with the model and the compiled kernels stay",
            commands=(Command((*compose, "down"), "stop and remove; --volumes would remove the downloads too"),),
        )
    settings = (f"SPARKSTRAL_MODEL={model}", f"SPARKSTRAL_HOST={host}", f"SPARKSTRAL_PORT={port}")
    return Deployment(
        f"{model} in a container on {host}:{port}, started again with the machine",
        commands=(
            Command((*compose, "build"), "the image: Python, PyTorch with CUDA 13, sparkstral; no compiler, no root"),
            Command(("env", *settings, *compose, "up", "--detach"), "download what is missing, check, serve"),
        ),
        notes=(
            "HF_TOKEN is passed on if it is set. Follow it: sparkstral logs --follow; is it ready: sparkstral status.",
        ),
    )
