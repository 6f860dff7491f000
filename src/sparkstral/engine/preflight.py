"""Whether an engine could be had here, before its weights are: `python -m sparkstral.engine.preflight SETUP`.

What an engine does first, and no more, in a process of its own, since whoever asks has no tensors. For a model that is
not downloaded yet, its folder holds headers alone (hub/headers). Exit code 0, or 1 and 2 with the sentence on standard
error, as a start would end.
"""

from __future__ import annotations

import sys

from sparkstral.engine.build import prepare
from sparkstral.engine.messages import decode_setup
from sparkstral.errors import ConfigError, SparkstralError


def main(setup: str) -> int:
    try:
        prepare(decode_setup(setup).config).memory_plan.require()
    except SparkstralError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
