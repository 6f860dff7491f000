"""Weight files that are all header: their data is a hole, so that the real sizes cost no disk."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

Declared = Mapping[str, tuple[str, tuple[int, ...]]]  # tensor name → dtype, shape

BYTES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}


def write_header_only(path: Path, tensors: Declared) -> None:
    """A safetensors file that declares `tensors` and has a hole of their size after its header."""
    header = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(content)) + content)
        file.truncate(8 + len(content) + end)


def mistral_small_4_nvfp4() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every tensor of the NVFP4 release: name, dtype, shape. Source: docs/model.md 3.2."""

    def matrix(
        stem: str, rows: int, columns: int, input_scale_dtype: str
    ) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        yield f"{stem}.weight_packed", "U8", (rows, columns // 2)
        yield f"{stem}.weight_scale", "F8_E4M3", (rows, columns // 16)
        yield f"{stem}.weight_global_scale", "F32", (1,)
        yield f"{stem}.input_global_scale", input_scale_dtype, (1,)

    for layer in range(36):
        prefix = f"layers.{layer}."
        yield f"{prefix}attention_norm.weight", "BF16", (4096,)
        yield f"{prefix}ffn_norm.weight", "BF16", (4096,)
        yield f"{prefix}attention.wq_a.weight", "BF16", (1024, 4096)
        yield f"{prefix}attention.q_a_norm.weight", "BF16", (1024,)
        yield f"{prefix}attention.wq_b.weight", "BF16", (4096, 1024)
        yield f"{prefix}attention.wkv_a_with_mqa.weight", "BF16", (320, 4096)
        yield f"{prefix}attention.kv_a_norm.weight", "BF16", (256,)
        yield f"{prefix}attention.wkv_b.weight", "BF16", (6144, 256)
        yield f"{prefix}attention.wo.weight", "BF16", (4096, 4096)
        yield f"{prefix}gate.weight", "BF16", (128, 4096)
        for stem, dtype in [*((f"experts.{e}", "F32") for e in range(128)), ("shared_experts", "BF16")]:
            yield from matrix(f"{prefix}{stem}.w1", 2048, 4096, dtype)
            yield from matrix(f"{prefix}{stem}.w2", 4096, 2048, dtype)
            yield from matrix(f"{prefix}{stem}.w3", 2048, 4096, dtype)
    yield "tok_embeddings.weight", "BF16", (131072, 4096)
    yield "output.weight", "BF16", (131072, 4096)
    yield "norm.weight", "BF16", (4096,)
    yield from vision_tensors(
        "vision_encoder", ("wq", "wk", "wv", "wo"), "pre_mm_projector_norm", "patch_merger",
        ("vision_language_adapter.w_in", "vision_language_adapter.w_out"), ("w1", "w2", "w3"),
    )  # fmt: skip


def mistral_small_4_fp8_hf() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every tensor of the FP8 release in the Hugging Face layout. Source: docs/model.md 3.5."""
    prefix = "model.language_model."
    for layer in range(36):
        stem = f"{prefix}layers.{layer}."
        yield f"{stem}input_layernorm.weight", "BF16", (4096,)
        yield f"{stem}post_attention_layernorm.weight", "BF16", (4096,)
        yield f"{stem}self_attn.q_a_layernorm.weight", "BF16", (1024,)
        yield f"{stem}self_attn.kv_a_layernorm.weight", "BF16", (256,)
        yield f"{stem}mlp.gate.weight", "BF16", (128, 4096)
        for name, shape in {
            "self_attn.q_a_proj": (1024, 4096),
            "self_attn.q_b_proj": (4096, 1024),
            "self_attn.kv_a_proj_with_mqa": (320, 4096),
            "self_attn.kv_b_proj": (6144, 256),
            "self_attn.o_proj": (4096, 4096),
            "mlp.shared_experts.gate_proj": (2048, 4096),
            "mlp.shared_experts.up_proj": (2048, 4096),
            "mlp.shared_experts.down_proj": (4096, 2048),
        }.items():
            yield f"{stem}{name}.weight", "F8_E4M3", shape
            yield f"{stem}{name}.weight_scale_inv", "BF16", ()
            yield f"{stem}{name}.activation_scale", "BF16", ()
        for name, rows, columns in [("gate_up_proj", 4096, 4096), ("down_proj", 4096, 2048)]:
            yield f"{stem}mlp.experts.{name}", "F8_E4M3", (128, rows, columns)
            yield f"{stem}mlp.experts.{name}_scale_inv", "BF16", (128, 1, 1)
            yield f"{stem}mlp.experts.{name}_activation_scale", "BF16", (128,)
    yield f"{prefix}embed_tokens.weight", "BF16", (131072, 4096)
    yield f"{prefix}norm.weight", "BF16", (4096,)
    yield "lm_head.weight", "BF16", (131072, 4096)
    projector = "model.multi_modal_projector"
    yield from vision_tensors(
        "model.vision_tower", ("q_proj", "k_proj", "v_proj", "o_proj"), f"{projector}.norm",
        f"{projector}.patch_merger", (f"{projector}.linear_1", f"{projector}.linear_2"),
        ("gate_proj", "down_proj", "up_proj"),
    )  # fmt: skip


def vision_tensors(
    tower: str,
    attention: tuple[str, ...],
    norm: str,
    merger: str,
    adapter: tuple[str, str],
    feed_forward: tuple[str, ...],
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{tower}.patch_conv.weight", "BF16", (1024, 3, 14, 14)
    yield f"{tower}.ln_pre.weight", "BF16", (1024,)
    for layer in range(24):
        prefix = f"{tower}.transformer.layers.{layer}."
        for name in ("attention_norm", "ffn_norm"):
            yield f"{prefix}{name}.weight", "BF16", (1024,)
        for name in attention:
            yield f"{prefix}attention.{name}.weight", "BF16", (1024, 1024)
        for name, shape in zip(feed_forward, [(4096, 1024), (1024, 4096), (4096, 1024)], strict=True):
            yield f"{prefix}feed_forward.{name}.weight", "BF16", shape
    yield f"{norm}.weight", "BF16", (1024,)
    yield f"{merger}.merging_layer.weight", "BF16", (1024, 4096)
    yield f"{adapter[0]}.weight", "BF16", (4096, 1024)
    yield f"{adapter[1]}.weight", "BF16", (4096, 4096)
