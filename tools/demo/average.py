"""Averages two demo checkpoints of one run into a third.

Owns nothing but the mean: between a finished model and the same model trained on, the mean of the weights is better
than either where the second was stopped before its learning rate had fallen (model soups, Wortsman et al. 2022).

    python -m tools.demo.average build/first build/second src/sparkstral/demo/checkpoint --weight 0.5
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.demo import native_layout
from tools.demo.documents import mixture
from tools.demo.export import write_checkpoint


def average(first: Path, second: Path, weight: float) -> dict[str, torch.Tensor]:
    """(1 - weight) of the first checkpoint's parameters and weight of the second's, float32."""
    ours, theirs = native_layout.read(first), native_layout.read(second)
    return {name: torch.lerp(tensor, theirs[name], weight) for name, tensor in ours.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weight", type=float, default=0.5, help="of the second")
    arguments = parser.parse_args()
    tekken_path = arguments.first / native_layout.TEKKEN_FILE
    sample = mixture(tekken_path, 8192, long_share=0.0, long_weight=1.0).batch(0)
    state = average(arguments.first, arguments.second, arguments.weight)
    size = write_checkpoint(
        state, torch.from_numpy(sample.token_ids).long(), tekken_path, arguments.folder
    )
    print(f"{arguments.folder}: {size:,} bytes")


if __name__ == "__main__":
    main()
