"""One logger for the program: plain lines on standard error, or one JSON object a line.

Rooms ask for `logging.getLogger(__name__)`; only the entry points call `configure`.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal

_LOGGERS = ("sparkstral", "uvicorn")  # what the HTTP server says comes in the same form


class JsonFormatter(logging.Formatter):
    """A record as one JSON object; what `extra={"request_id": …, "fields": {…}}` adds is kept."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(style: Literal["text", "json"] = "text", level: str = "INFO") -> None:
    """Send the program's log to standard error; called once by an entry point, in each process."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
        )
    for name in _LOGGERS:
        top = logging.getLogger(name)
        top.handlers[:] = [handler]
        top.setLevel(level)
        top.propagate = False
