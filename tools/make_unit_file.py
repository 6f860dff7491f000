"""Write deploy/sparkstral.service: what `sparkstral deploy systemd` makes for an installation in /opt, to be read
before it is run.

    python -m tools.make_unit_file [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID
from sparkstral.config import DEFAULT_HOST, DEFAULT_PORT
from sparkstral.deploy.systemd import UNIT, Service

FILE = Path(__file__).parents[1] / "deploy" / UNIT


def example() -> str:
    program, home = Path("/opt/sparkstral/.venv/bin/sparkstral"), Path("/var/lib/sparkstral")
    return Service(program, EXAMPLE_HUB_ID, DEFAULT_HOST, DEFAULT_PORT, "sparkstral", home).unit()


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_text(example())
