"""Patterns for error messages, whose words are part of what the product promises."""

from __future__ import annotations

import re


def says(*texts: object) -> str:
    """A pattern for `pytest.raises(match=…)` that finds all of `texts`, in this order."""
    return "(?s)" + ".*".join(re.escape(str(text)) for text in texts)
