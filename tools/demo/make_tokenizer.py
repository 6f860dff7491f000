"""Writes a tekken.json of version v15 from the tekken vocabulary that mistral-common ships.

Owns the form of that file: 1,000 special ids first, then the first ranks of the byte-level BPE (a prefix of
the merges is a valid vocabulary), the released regex, and the model settings of Mistral Small 4. Must not
know the model. Source: docs/model.md, tokenizer section; mistral-common's Tekkenizer.from_file, which reads
the file.

    python -m tools.demo.make_tokenizer src/sparkstral/demo/checkpoint/tekken.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

NUM_SPECIAL_TOKENS = 1000
DEMO_NUM_RANKS = 7192  # 8,192 ids with the special ones: 2 x 6.3 MB of BF16 embedding and head at width 384
RELEASED_NUM_RANKS = 130_072
SOURCE_FILE = "tekken_240911.json"

SPECIAL_TOKENS = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    3: "[INST]",
    4: "[/INST]",
    5: "[AVAILABLE_TOOLS]",
    6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]",
    8: "[/TOOL_RESULTS]",
    9: "[TOOL_CALLS]",
    10: "[IMG]",
    11: "<pad>",
    12: "[IMG_BREAK]",
    13: "[IMG_END]",
    14: "[PREFIX]",
    15: "[MIDDLE]",
    16: "[SUFFIX]",
    17: "[SYSTEM_PROMPT]",
    18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]",
    32: "[ARGS]",
    33: "[CALL_ID]",
    34: "[THINK]",
    35: "[/THINK]",
    36: "[MODEL_SETTINGS]",
    37: "[/MODEL_SETTINGS]",
}


def tekken_v15(num_ranks: int) -> dict[str, Any]:
    """The whole file as a JSON object, with `num_ranks` BPE entries: ids run to 1,000 + num_ranks - 1."""
    import mistral_common  # here, because the synthetic checkpoint needs `tekken_file` where this is not installed

    source_path = Path(mistral_common.__file__).parent / "data" / SOURCE_FILE
    source = json.loads(source_path.read_text(encoding="utf-8"))
    return tekken_file(source["vocab"][:num_ranks], source["config"]["pattern"])


def tekken_file(vocab: list[dict[str, Any]], pattern: str) -> dict[str, Any]:
    """The whole file for BPE entries `vocab` and the regex that splits text before the merges."""
    return {
        "config": {
            "pattern": pattern,
            "num_vocab_tokens": len(vocab),
            "default_vocab_size": NUM_SPECIAL_TOKENS + len(vocab),
            "default_num_special_tokens": NUM_SPECIAL_TOKENS,
            "version": "v15",
        },
        "vocab": vocab,
        "special_tokens": [
            {"rank": rank, "token_str": SPECIAL_TOKENS.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
            for rank in range(NUM_SPECIAL_TOKENS)
        ],
        "image": {"image_patch_size": 14, "max_image_size": 1540, "spatial_merge_size": 2},
        "model_settings_builder": {
            "reasoning_effort": {
                "type": "enum",
                "accepts_none": True,
                "default": "none",
                "values": ["none", "high"],
            }
        },
    }


def write_tekken(path: Path, num_ranks: int) -> None:
    """Write the file; one BPE entry a line, so that it can be read and compared."""
    whole = tekken_v15(num_ranks)
    parts = []
    for key, value in whole.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in value)
            parts.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--ranks", type=int, default=DEMO_NUM_RANKS, help=f"{RELEASED_NUM_RANKS} is the released size"
    )
    arguments = parser.parse_args()
    write_tekken(arguments.path, arguments.ranks)
    num_ids, num_bytes = NUM_SPECIAL_TOKENS + arguments.ranks, arguments.path.stat().st_size
    print(f"{arguments.path}: {num_ids:,} ids, {num_bytes:,} bytes")


if __name__ == "__main__":
    main()
