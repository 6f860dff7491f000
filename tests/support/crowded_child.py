"""The engine process on a machine that is short of something: `sparkstral.engine.process.CHILD_MODULE` is set to this
module, and CROWDED says of what: "device" (it takes its device for itself, as on a GPU) or "memory"."""

from __future__ import annotations

import os
import sys

from sparkstral.engine import build, lifecycle
from sparkstral.engine.child import main
from sparkstral.engine.messages import decode_setup
from sparkstral.memory.holders import Holder
from sparkstral.memory.probe import AvailableMemory
from sparkstral.units import GiB, MiB

DEVICE = "NVIDIA GB10 GPU-1234"
OTHER = Holder(4242, "python vllm", 66 * GiB, "host")

if __name__ == "__main__":
    if os.environ["CROWDED"] == "device":
        lifecycle.exclusive_device = lambda _: DEVICE
    else:
        build.available_memory = lambda _: AvailableMemory(64 * MiB, "MemAvailable")  # type: ignore[assignment]
        build.host_holders = lambda: (OTHER,)  # type: ignore[assignment]
    main(decode_setup(sys.argv[1]))
