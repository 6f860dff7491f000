"""What holds for every test."""

from __future__ import annotations

import os
import signal

# Triton kernels run in its interpreter here: the switch must be set before a kernel's module is imported.
os.environ["TRITON_INTERPRET"] = "1"

# A shell that starts the tests in the background has them ignore Ctrl-C, and every program that they start with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
