"""The words that clients have for the effort of reasoning. The model knows two settings."""

from __future__ import annotations

from typing import Literal

EFFORTS: dict[str, Literal["none", "high"]] = {
    "none": "none",
    "minimal": "none",
    "low": "none",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
