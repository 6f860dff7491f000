"""How urgent a request is, in every protocol: two headers, and the field `priority` where the wire has it.

Owns their spelling and limits; must not know what becomes of them.
"""

from __future__ import annotations

import re

from fastapi import Request

from sparkstral.api.wire import Wire
from sparkstral.errors import RequestError
from sparkstral.types import Urgency

PRIORITY_HEADER = "x-sparkstral-priority"
TIMEOUT_HEADER = "x-sparkstral-timeout-s"
MAX_PRIORITY = 100
MAX_TIMEOUT_S = 86_400.0


def urgency(request: Request, wire: Wire) -> Urgency:
    """The field goes before the header. Raises RequestError naming the header that holds no such number."""
    priority = getattr(wire, "priority", None)
    if priority is None:
        text = request.headers.get(PRIORITY_HEADER, "0")
        priority = int(text) if re.fullmatch(r"-?[0-9]{1,3}", text) else MAX_PRIORITY + 1
        if abs(priority) > MAX_PRIORITY:
            raise RequestError(
                f"The header {PRIORITY_HEADER} is {text[:20]!r}; it takes whole numbers from -{MAX_PRIORITY} "
                f"(earlier) to {MAX_PRIORITY} (later).",
                PRIORITY_HEADER,
            )
    return Urgency(priority, _timeout_s(request.headers.get(TIMEOUT_HEADER)))


def _timeout_s(text: str | None) -> float | None:
    if text is None:
        return None
    timeout_s = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", text) else 0.0  # float takes 1_0 and inf
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise RequestError(
            f"The header {TIMEOUT_HEADER} is {text[:20]!r}; it takes seconds above 0, up to {MAX_TIMEOUT_S:,.0f}.",
            TIMEOUT_HEADER,
        )
    return timeout_s
