"""Commands whose work is measured: it runs in a process of its own, and this one shows its progress.

Owns the child process (`python -m MODULE ... --json FILE`), the bar that its lines "3/40 what" become, and what is made
of its end. The child holds the tensors; this room only draws what it wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def run_measured(module: str, arguments: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Run `module` with `--json` and the arguments -> (its document, its exit code). Where it wrote none, its own
    sentence is already on standard error, and this process ends with its code."""
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "document.json"
        command = [sys.executable, "-W", "ignore", "-m", module, *arguments, "--json", str(document)]
        # What was imported for Triton's interpreter cannot be compiled.
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            assert child.stdout is not None
            _show(child.stdout)
        if not document.exists():
            sys.exit(child.returncode or 1)
        found: dict[str, Any] = json.loads(document.read_text())
    return found, child.returncode


def _show(lines: Any) -> None:
    """A bar on a terminal; the lines themselves elsewhere, on standard error in both cases."""
    console = Console(stderr=True)
    if not console.is_terminal:
        for line in lines:
            print(line, end="", file=sys.stderr, flush=True)
        return
    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=console,
        transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("starting", total=None)
        for line in lines:
            count, _, what = line.rstrip().partition(" ")
            done, _, total = count.partition("/")
            if done.isdigit() and total.isdigit():
                progress.update(task, description=what, completed=int(done), total=int(total) or None)
            else:
                progress.console.print(line.rstrip(), highlight=False, markup=False)


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=1))
