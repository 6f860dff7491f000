"""Where the demo checkpoint is: beside this file, so that an installed package has it too."""

from __future__ import annotations

from pathlib import Path

DEMO_CHECKPOINT = Path(__file__).parent / "checkpoint"
