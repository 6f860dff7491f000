"""A tekken.json of version v15 with the full vocabulary, built from the one that mistral-common ships.

The released vocabularies are the same bytes; only names of unused control tokens differ from the real file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import mistral_common

from sparkstral.chat.tokenizer import ChatTokenizer

NUM_SPECIAL_TOKENS = 1000
VOCAB_SIZE = 131_072

_NAMED = {
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

_SETTINGS_BUILDER = {
    "reasoning_effort": {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
}


def write_tekken(folder: Path) -> Path:
    """Writes `folder`/tekken.json and returns its path."""
    shipped = json.loads((Path(mistral_common.__file__).parent / "data" / "tekken_240911.json").read_bytes())
    num_text_tokens = VOCAB_SIZE - NUM_SPECIAL_TOKENS
    content = {
        "config": {
            "pattern": shipped["config"]["pattern"],
            "num_vocab_tokens": num_text_tokens,
            "default_vocab_size": VOCAB_SIZE,
            "default_num_special_tokens": NUM_SPECIAL_TOKENS,
            "version": "v15",
        },
        "vocab": shipped["vocab"][:num_text_tokens],
        "special_tokens": [
            {"rank": rank, "token_str": _NAMED.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
            for rank in range(NUM_SPECIAL_TOKENS)
        ],
        "image": {"image_patch_size": 14, "max_image_size": 1540, "spatial_merge_size": 2},
        "model_settings_builder": _SETTINGS_BUILDER,
    }
    path = folder / "tekken.json"
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


@cache
def v15_tokenizer() -> ChatTokenizer:
    """The full tokenizer, built once in a test process (about 2 s)."""
    with TemporaryDirectory() as folder:
        return ChatTokenizer.load(write_tekken(Path(folder)))
