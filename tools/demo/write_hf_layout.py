"""Writes a demo checkpoint in the Hugging Face layout, for transformers' Mistral4ForCausalLM.from_pretrained.

The experts are decoded from NVFP4 to BF16 (transformers reads no NVFP4 of this layout), so the folder is
larger than the native one and its expert values are rounded to BF16 once more.

    python -m tools.demo.write_hf_layout src/sparkstral/demo/checkpoint build/demo-hf
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.demo import native_layout
from tools.demo.export import model_of


def write_hf_layout(checkpoint: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json and model.safetensors with the parameters in `dtype`."""
    model_of(native_layout.read(checkpoint), torch.device("cpu"), dtype).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    write_hf_layout(arguments.checkpoint, arguments.folder)
    print(f"{arguments.folder}: config.json, model.safetensors (BF16)")


if __name__ == "__main__":
    main()
