from __future__ import annotations

from tests.unit.cli.conftest import run

__all__ = ["run"]
