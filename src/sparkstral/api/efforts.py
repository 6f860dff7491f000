"""The words that clients have for the effort of reasoning. The model knows two settings."""

from __future__ import annotations

from typing import Annotated, Literal

from sparkstral.api.wire import Mapped

Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
    Mapped("`none`, `minimal`, `low` become none, the default; `medium` and up become high"),
]
EFFORTS: dict[str, Literal["none", "high"]] = {
    "none": "none",
    "minimal": "none",
    "low": "none",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
