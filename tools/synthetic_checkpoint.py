"""Writes a checkpoint like the released one, of random values: its names, shapes, dtypes and files, for measurements.

    python -m tools.synthetic_checkpoint FOLDER --layers 36 --seed 0

36 layers are 56,313 tensors and 70,801,959,560 bytes, the vision tower included (docs/model.md, 3.2). Drawn with numpy
on all cores, so that a folder is the same on every machine, with a GPU or without; a tensor depends on its name, the
seed and the number of layers alone. Needs torch and numpy, nothing else.

Values are such that the network computes with sensible numbers: each matrix keeps the size of its input (deviation
K^-0.5), what a layer adds to the residual stream is small enough that all layers together double its variance, scores
and router logits have a deviation near 1 (experts are chosen evenly), the output's logits one of 2. What the model says
is noise. tekken.json is made up likewise: as many tokens as the released file, one to three bytes each, so that the
engine can start and text can be sent.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import math
import os
import shutil
import string
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.demo.make_tokenizer import NUM_SPECIAL_TOKENS, tekken_file

NUM_SHARDS = 13  # of the release; the activation scales stand in a shard of their own, the last
RELEASED_LAYERS = 36
BLOCK_BYTES = 16 << 20  # drawn and written at a time, by one thread
DTYPE_BYTES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
# How safetensors itself orders a file: the dtypes so, then by name.
DTYPE_ORDER = ("F32", "BF16", "F8_E4M3", "U8")

E2M1_RMS = math.sqrt(68.5 / 8)  # of the magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6
FIRST_SCALE_CODE = 0x74  # F8_E4M3 codes 0x74 to 0x7B are these scales:
SCALES = (192, 208, 224, 240, 256, 288, 320, 352)
SCALE_RMS = math.sqrt(sum(scale * scale for scale in SCALES) / len(SCALES))
GATED_RMS = 0.596  # of silu(a) * b for normal a and b
LOGITS_STD = 2.0
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Sizes:
    """Of the released model; tests have smaller ones."""

    layers: int = RELEASED_LAYERS
    hidden: int = 4096
    vocab: int = 131_072
    heads: int = 32
    q_lora_rank: int = 1024
    experts: int = 128
    expert_width: int = 2048
    vision_layers: int = 24
    vision_hidden: int = 1024
    vision_width: int = 4096

    @property
    def branch(self) -> float:
        """The size of what one of the two branches of a layer adds to the residual stream."""
        return (2 * self.layers) ** -0.5


@dataclass(frozen=True)
class Normal:
    std: float
    mean: float = 0.0


@dataclass(frozen=True)
class Codes:
    """Any bytes: packed e2m1."""


@dataclass(frozen=True)
class BlockScales:
    """`SCALES`."""


@dataclass(frozen=True)
class GlobalScale:
    """The divisor that gives a matrix of `Codes` and `BlockScales` the deviation `std`, give or take a fifth."""

    std: float


@dataclass(frozen=True)
class Constant:
    value: float


Values = Normal | Codes | BlockScales | GlobalScale | Constant
NORM = Normal(0.1, mean=1.0)
INPUT_SCALE = Constant(300.0)


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Values

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


# ------------------------------------------------------------------------------------------------------------
# What there is
# ------------------------------------------------------------------------------------------------------------


def list_tensors(sizes: Sizes) -> Iterator[Tensor]:
    """Every tensor, layer by layer. Source: docs/model.md 3.2."""
    for layer in range(sizes.layers):
        yield from layer_tensors(sizes, f"layers.{layer}.")
    yield Tensor("norm.weight", "BF16", (sizes.hidden,), NORM)
    yield Tensor("tok_embeddings.weight", "BF16", (sizes.vocab, sizes.hidden), Normal(1.0))
    yield dense("output", sizes.vocab, sizes.hidden, LOGITS_STD)
    yield from vision_tensors(sizes)


def layer_tensors(sizes: Sizes, prefix: str) -> Iterator[Tensor]:
    hidden, width = sizes.hidden, sizes.expert_width
    attention = prefix + "attention."
    yield norm(prefix + "attention_norm", hidden)
    yield norm(prefix + "ffn_norm", hidden)
    yield dense(attention + "wq_a", sizes.q_lora_rank, hidden)
    yield norm(attention + "q_a_norm", sizes.q_lora_rank)
    yield dense(attention + "wq_b", sizes.heads * 128, sizes.q_lora_rank)
    yield dense(attention + "wkv_a_with_mqa", 320, hidden)
    yield norm(attention + "kv_a_norm", 256)
    yield dense(attention + "wkv_b", sizes.heads * 192, 256)
    yield dense(attention + "wo", hidden, sizes.heads * 128, sizes.branch)
    yield dense(prefix + "gate", sizes.experts, hidden)
    experts = [(f"experts.{expert}.", "F32") for expert in range(sizes.experts)]
    for stem, input_scale_dtype in [*experts, ("shared_experts.", "BF16")]:
        yield from nvfp4(prefix + stem + "w1", width, hidden, 1.0, input_scale_dtype)
        yield from nvfp4(prefix + stem + "w2", hidden, width, sizes.branch / GATED_RMS, input_scale_dtype)
        yield from nvfp4(prefix + stem + "w3", width, hidden, 1.0, input_scale_dtype)


def vision_tensors(sizes: Sizes) -> Iterator[Tensor]:
    hidden, width = sizes.vision_hidden, sizes.vision_width
    yield Tensor("vision_encoder.patch_conv.weight", "BF16", (hidden, 3, 14, 14), Normal((3 * 14 * 14) ** -0.5))
    yield norm("vision_encoder.ln_pre", hidden)
    for layer in range(sizes.vision_layers):
        prefix = f"vision_encoder.transformer.layers.{layer}."
        yield norm(prefix + "attention_norm", hidden)
        yield norm(prefix + "ffn_norm", hidden)
        for matrix in ("wq", "wk", "wv", "wo"):
            yield dense(f"{prefix}attention.{matrix}", hidden, hidden)
        yield dense(prefix + "feed_forward.w1", width, hidden)
        yield dense(prefix + "feed_forward.w3", width, hidden)
        yield dense(prefix + "feed_forward.w2", hidden, width)
    yield norm("pre_mm_projector_norm", hidden)
    yield dense("patch_merger.merging_layer", hidden, 4 * hidden)
    yield dense("vision_language_adapter.w_in", sizes.hidden, hidden)
    yield dense("vision_language_adapter.w_out", sizes.hidden, sizes.hidden)


def norm(stem: str, size: int) -> Tensor:
    return Tensor(stem + ".weight", "BF16", (size,), NORM)


def dense(stem: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    return Tensor(stem + ".weight", "BF16", (rows, columns), Normal(gain * columns**-0.5))


def nvfp4(stem: str, rows: int, columns: int, gain: float, input_scale_dtype: str) -> Iterator[Tensor]:
    yield Tensor(stem + ".weight_packed", "U8", (rows, columns // 2), Codes())
    yield Tensor(stem + ".weight_scale", "F8_E4M3", (rows, columns // 16), BlockScales())
    yield Tensor(stem + ".weight_global_scale", "F32", (1,), GlobalScale(gain * columns**-0.5))
    yield Tensor(stem + ".input_global_scale", input_scale_dtype, (1,), INPUT_SCALE)


def params(sizes: Sizes) -> dict[str, Any]:
    """params.json, in the release's order of keys."""
    numbers: dict[str, Any] = {
        "num_bits": 4, "type": "float", "symmetric": True, "group_size": 16, "strategy": "tensor_group",
        "block_structure": None, "dynamic": False, "actorder": None, "scale_dtype": "torch.float8_e4m3fn",
        "zp_dtype": None, "observer": "memoryless_minmax", "observer_kwargs": {},
    }  # fmt: skip
    return {
        "dim": sizes.hidden, "n_layers": sizes.layers, "head_dim": 128, "hidden_dim": 3 * sizes.hidden,
        "n_heads": sizes.heads, "n_kv_heads": sizes.heads, "rope_theta": 10000.0, "norm_eps": 1e-06,
        "vocab_size": sizes.vocab, "tied_embeddings": False, "max_position_embeddings": 1_048_576,
        "llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1},
        "q_lora_rank": sizes.q_lora_rank, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "kv_lora_rank": 256,
        "v_head_dim": 128,
        "yarn": {
            "original_max_position_embeddings": 8192, "factor": 128, "apply_scale": False, "beta": 32, "alpha": 1
        },
        "moe": {
            "expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1, "first_k_dense_replace": 0,
            "num_experts": sizes.experts, "num_experts_per_tok": 4, "num_expert_groups": 1,
            "num_expert_groups_per_tok": 1, "routed_scale": 1.0, "expert_hidden_dim": sizes.expert_width,
            "num_shared_experts": 1,
        },
        "vision_encoder": {
            "image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13,
            "intermediate_size": sizes.vision_width, "num_hidden_layers": sizes.vision_layers,
            "num_attention_heads": sizes.vision_hidden // 64, "mm_projector_id": "patch_merge",
            "spatial_merge_size": 2, "hidden_size": sizes.vision_hidden, "num_channels": 3, "image_size": 1540,
            "max_image_size": 1540, "patch_size": 14, "rope_theta": 10000.0,
            "add_pre_mm_projector_layer_norm": True, "adapter_bias": False,
        },
        "quantization_config": {
            "quant_method": "compressed-tensors", "quantization_status": "compressed", "version": "0.13.0",
            "format": "nvfp4-pack-quantized", "global_compression_ratio": None, "kv_cache_scheme": None,
            "sparsity_config": {}, "transform_config": {},
            "config_groups": {
                "NVFP4A16": {
                    "format": "nvfp4-pack-quantized", "targets": ["Linear"], "output_activations": None,
                    "weights": numbers,
                    "input_activations": {**numbers, "dynamic": "local", "observer": "static_minmax"},
                }
            },
            "ignore": [
                "model.embed_tokens", "re:patch_merger.*", "re:vision_encoder.*", "re:vision_language_adapter.*",
                "re:.*kv_a_proj_with_mqa$", "re:.*q_a_proj$", "re:.*gate$", "re:.*self_attn.*", "re:.*attention.*",
                "lm_head",
            ],
        },
    }  # fmt: skip


def tekken(num_ids: int) -> dict[str, Any]:
    """tekken.json with `num_ids` ids: all bytes, all pairs of bytes, then as many triples of letters as it takes."""
    letters = string.ascii_letters.encode()
    tokens = itertools.chain(
        itertools.product(range(256), repeat=1),
        itertools.product(range(256), repeat=2),
        itertools.product(letters, repeat=3),
    )
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(bytes(token)).decode(), "token_str": None}
        for rank, token in enumerate(itertools.islice(tokens, num_ids - NUM_SPECIAL_TOKENS))
    ]
    return tekken_file(vocab, PATTERN)


# ------------------------------------------------------------------------------------------------------------
# Drawing
# ------------------------------------------------------------------------------------------------------------


def draw(tensor: Tensor, seed: int, block: int) -> np.ndarray:
    """The bytes of `tensor` in its block number `block`."""
    num_bytes = min(BLOCK_BYTES, tensor.num_bytes - block * BLOCK_BYTES)
    key = zlib.crc32(tensor.name.encode())
    match tensor.values:
        case Constant(value):
            return as_bytes(torch.full(tensor.shape, value), tensor.dtype)
        case GlobalScale(std):
            random = zlib.crc32(seed.to_bytes(8, "little"), key) / 2**32
            return as_bytes(torch.full(tensor.shape, E2M1_RMS * SCALE_RMS / std * (0.8 + 0.4 * random)), tensor.dtype)
    generator = np.random.Generator(np.random.SFC64([seed, key, block]))
    words = generator.integers(0, 1 << 64, size=-(-num_bytes // 8), dtype=np.uint64)
    match tensor.values:
        case BlockScales():
            words &= np.uint64(0x0707070707070707)
            words += np.uint64(int.from_bytes(bytes([FIRST_SCALE_CODE] * 8), "little"))
        case Normal(std, mean):
            words = quantiles(std, mean)[words.view(np.uint16)].view(np.uint64)
    return words.view(np.uint8)[:num_bytes]


@cache
def quantiles(std: float, mean: float) -> np.ndarray:
    """The normal distribution as 65,536 BF16 numbers, each as probable as the others."""
    probabilities = (torch.arange(1 << 16, dtype=torch.float64) + 0.5) / (1 << 16)
    return torch.special.ndtri(probabilities).mul(std).add(mean).bfloat16().view(torch.int16).numpy().view(np.uint16)


def as_bytes(values: torch.Tensor, dtype: str) -> np.ndarray:
    return values.to({"F32": torch.float32, "BF16": torch.bfloat16}[dtype]).view(torch.uint8).numpy()


# ------------------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------------------


def divide(tensors: Sequence[Tensor], layers: int) -> list[list[Tensor]]:
    """Shards of about equal size, as the release's for 36 layers; the last has the activation scales alone."""
    weights = [tensor for tensor in tensors if not tensor.name.endswith(".input_global_scale")]
    input_scales = [tensor for tensor in tensors if tensor.name.endswith(".input_global_scale")]
    num_shards = max(1, round((NUM_SHARDS - 1) * layers / RELEASED_LAYERS))
    total, done = sum(tensor.num_bytes for tensor in weights), 0
    shards: list[list[Tensor]] = [[] for _ in range(num_shards)]
    for tensor in weights:
        shards[done * num_shards // total].append(tensor)
        done += tensor.num_bytes
    return [*shards, input_scales]


def write_checkpoint(folder: Path, sizes: Sizes, seed: int, num_threads: int) -> tuple[int, int]:
    """Write the whole folder; gives the numbers of tensors and of their bytes. params.json comes last: a folder
    that is not whole is no checkpoint."""
    tensors = list(list_tensors(sizes))
    num_bytes = sum(tensor.num_bytes for tensor in tensors)
    folder.mkdir(parents=True, exist_ok=True)
    if present := sorted(path.name for path in folder.iterdir()):
        raise SystemExit(f"{folder} is not empty ({', '.join(present[:3])} …). Give an empty folder, or a new one.")
    if (free := shutil.disk_usage(folder).free) < num_bytes:
        raise SystemExit(f"{folder} has {free:,} bytes free, and the checkpoint takes {num_bytes:,}. Use --layers.")
    shards = divide(tensors, sizes.layers)
    weight_map: dict[str, str] = {}
    with ThreadPoolExecutor(num_threads) as pool:
        jobs = []
        descriptors = []
        for number, shard in enumerate(shards, 1):
            name = f"consolidated-{number:05d}-of-{len(shards):05d}.safetensors"
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            descriptors.append(descriptor)
            for tensor, offset in write_header(descriptor, shard):
                weight_map[tensor.name] = name
                jobs += [
                    pool.submit(write_block, descriptor, offset, tensor, seed, block)
                    for block in range(-(-tensor.num_bytes // BLOCK_BYTES))
                ]
        try:
            show_progress((job.result() for job in as_completed(jobs)), num_bytes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    write_json(folder / "tekken.json", tekken(sizes.vocab))
    index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
    write_json(folder / "consolidated.safetensors.index.json", index)
    write_json(folder / "params.json", params(sizes))
    return len(tensors), num_bytes


def write_header(descriptor: int, tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Write the head of a safetensors file of `tensors`; gives each with its offset in the file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    placed, end = [], 0
    for tensor in sorted(tensors, key=lambda tensor: (DTYPE_ORDER.index(tensor.dtype), tensor.name)):
        begin, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
        placed.append((tensor, begin))
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)  # the format's alignment
    os.pwrite(descriptor, len(content).to_bytes(8, "little") + content, 0)
    os.ftruncate(descriptor, 8 + len(content) + end)
    return [(tensor, 8 + len(content) + begin) for tensor, begin in placed]


def write_block(descriptor: int, offset: int, tensor: Tensor, seed: int, block: int) -> int:
    data = memoryview(draw(tensor, seed, block))
    num_bytes = len(data)
    offset += block * BLOCK_BYTES
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
    return num_bytes


def show_progress(written: Iterable[int], num_bytes: int) -> None:
    started = shown = time.monotonic()
    done = 0
    for block_bytes in written:
        done += block_bytes
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            rate = done / (shown - started)
            left = (num_bytes - done) / rate
            print(f"{done / 1e9:.1f} of {num_bytes / 1e9:.1f} GB, {rate / 1e9:.1f} GB/s, {left:.0f} s left", flush=True)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=RELEASED_LAYERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if arguments.layers < 1 or arguments.seed < 0:
        parser.error("--layers must be at least 1, and --seed at least 0")
    started = time.monotonic()
    num_tensors, num_bytes = write_checkpoint(
        arguments.folder, Sizes(layers=arguments.layers), arguments.seed, arguments.threads
    )
    seconds = time.monotonic() - started
    print(f"{arguments.folder}: {num_tensors:,} tensors, {num_bytes:,} bytes in {seconds:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
