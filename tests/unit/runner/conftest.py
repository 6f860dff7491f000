"""Triton's sampling runs in its interpreter here: the switch must be set before a kernel's module is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
