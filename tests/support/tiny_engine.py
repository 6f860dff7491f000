"""A tiny random model with its vocabulary, as an engine serves it: 40 special ids, then the 256 bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from sparkstral.config import EngineConfig
from tests.support.tiny_checkpoint import TinyModel, write_native

VOCAB_SIZE = 320
NUM_SPECIAL_TOKENS = 40


def write_tiny_model(folder: Path, with_vision: bool = False) -> Path:
    """Write a folder that `EngineConfig.model_path` can name; return it."""
    write_native(folder, TinyModel(vocab_size=VOCAB_SIZE), with_vision=with_vision)
    config = {
        "pattern": r"\s+|\S+",
        "default_vocab_size": NUM_SPECIAL_TOKENS + 256,
        "default_num_special_tokens": NUM_SPECIAL_TOKENS,
    }
    vocab = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(256)]
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    return folder


def tiny_config(folder: Path) -> EngineConfig:
    """512 tokens a request, about 100 blocks of 16 tokens, one thread: tests share the machine."""
    return EngineConfig(
        folder, device="cpu", max_model_len=512, kv_memory_bytes=4 << 20, block_size_tokens=16, num_threads=1
    )
