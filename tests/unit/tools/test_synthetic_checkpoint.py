"""The synthetic checkpoint: the released model's headers, and values that compute sensibly (at small sizes)."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.nn import functional as F

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.checkpoint.load import load
from sparkstral.checkpoint.plan import plan_load
from sparkstral.checkpoint.summary import summarize
from sparkstral.kernels import rms_norm
from sparkstral.model.linear import to_dense
from sparkstral.model.mistral4 import Mistral4
from sparkstral.structured.vocabulary import build_grammar_tokenizer, read_vocabulary
from tests.parity.paged import Chunk, batch_of, new_pool
from tests.support.header_only import mistral_small_4_nvfp4
from tools import synthetic_checkpoint
from tools.synthetic_checkpoint import Sizes, divide, list_tensors, write_checkpoint

SMALL = Sizes(
    layers=12,
    hidden=256,
    vocab=1300,
    heads=2,
    q_lora_rank=128,
    experts=16,
    expert_width=64,
    vision_layers=1,
    vision_hidden=64,
    vision_width=64,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / "checkpoint"
    write_checkpoint(path, SMALL, seed=0, num_threads=2)
    return path


def test_36_layers_are_the_release() -> None:
    tensors = list(list_tensors(Sizes()))
    assert {(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors} == set(mistral_small_4_nvfp4())
    assert len(tensors) == 56_313
    assert sum(tensor.num_bytes for tensor in tensors) == 70_801_959_560


def test_36_layers_are_13_shards_and_the_last_has_the_activation_scales() -> None:
    shards = divide(list(list_tensors(Sizes())), 36)
    assert len(shards) == 13
    sizes = [sum(tensor.num_bytes for tensor in shard) for shard in shards[:-1]]
    assert max(sizes) - min(sizes) < 2 * 1_073_741_824  # an embedding is not divided
    assert {tensor.name.rpartition(".")[2] for tensor in shards[-1]} == {"input_global_scale"}
    assert len(shards[-1]) == 36 * 129 * 3


def test_the_engine_reads_it_and_names_what_it_skips(folder: Path) -> None:
    summary = summarize(plan_load(folder))
    assert summary.layout == "native"
    skipped = {row.name: row.num_tensors for row in summary.classes if row.skipped_reason}
    assert skipped == {"activation scales": 12 * 17 * 3}
    without = summarize(plan_load(folder, with_vision=False))
    num_vision = sum("vision" in tensor.name for tensor in list_tensors(SMALL)) + 2  # projector norm, patch merger
    assert num_vision in [row.num_tensors for row in without.classes if row.skipped_reason]


def test_the_safetensors_package_reads_it(folder: Path) -> None:
    index = json.loads((folder / "consolidated.safetensors.index.json").read_bytes())
    assert len(index["weight_map"]) == len(list(list_tensors(SMALL)))
    for tensor in list_tensors(SMALL):
        with safe_open(folder / index["weight_map"][tensor.name], "pt") as file:
            assert list(tensor.shape) == file.get_slice(tensor.name).get_shape()
            assert file.get_slice(tensor.name).get_dtype() == tensor.dtype


def test_a_seed_gives_the_same_bytes_however_many_threads_write(folder: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "same", SMALL, seed=0, num_threads=1)
    write_checkpoint(tmp_path / "other", SMALL, seed=1, num_threads=2)
    for path in folder.iterdir():
        assert (tmp_path / "same" / path.name).read_bytes() == path.read_bytes()
    name = "consolidated-00001-of-00005.safetensors"
    assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()


def test_large_tensors_are_drawn_in_blocks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block has its own values, and fills its own place."""
    monkeypatch.setattr(synthetic_checkpoint, "BLOCK_BYTES", 4096)
    write_checkpoint(tmp_path / "blocks", SMALL, seed=0, num_threads=2)
    _, weights = load(tmp_path / "blocks")
    blocks = weights.embed_tokens[: 1300 // 8 * 8].reshape(-1, 8 * 256)
    assert len(torch.unique(blocks, dim=0)) == len(blocks)
    assert torch.equal(weights.embed_tokens[:8], load(folder)[1].embed_tokens[:8])


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    with pytest.raises(SystemExit, match="not empty"):
        write_checkpoint(folder, SMALL, seed=0, num_threads=1)


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = collections.namedtuple("usage", "free")
    monkeypatch.setattr(synthetic_checkpoint.shutil, "disk_usage", lambda folder: usage(1000))
    with pytest.raises(SystemExit, match="1,000 bytes free"):
        write_checkpoint(tmp_path, SMALL, seed=0, num_threads=1)


def test_values_keep_the_network_in_bounds(folder: Path) -> None:
    config, weights = load(folder)
    model = Mistral4(config, weights, torch.device("cpu"), torch.float32)
    token_ids = torch.randint(0, SMALL.vocab, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    batch = batch_of([Chunk(token_ids, 0, list(range(16)))])
    pool = new_pool(model, 16)
    states = list(model.hidden_states(batch, pool))
    first, last = (float(states[index].pow(2).mean().sqrt()) for index in (0, -1))
    assert 0.9 < first < 1.1
    assert 1.1 < last < 1.8  # about the square root of 2
    logits = model.forward(batch, pool)
    assert bool(logits.isfinite().all())
    assert 1.5 < float(logits.std()) < 2.5
    counts = torch.zeros(SMALL.experts)
    for state, layer in zip(states, weights.layers, strict=False):
        normed = rms_norm.rms_norm(state, layer.ffn_norm.float(), config.rms_norm_eps)
        scores = F.linear(normed, layer.router.float())
        assert 0.8 < float(scores.std()) < 1.3
        counts += torch.bincount(scores.topk(4).indices.flatten(), minlength=SMALL.experts)
    shares = counts / counts.sum() * SMALL.experts
    assert float(shares.min()) > 0.7
    assert float(shares.max()) < 1.3


def test_nvfp4_matrices_have_the_size_that_was_meant(folder: Path) -> None:
    _, weights = load(folder)
    experts = weights.layers[0].experts
    for weight, expected in [(experts.gate, 256**-0.5), (experts.down, SMALL.branch / 0.596 * 64**-0.5)]:
        sizes = to_dense(weight, torch.device("cpu"), torch.float32).pow(2).mean((1, 2)).sqrt()
        assert bool((sizes / expected > 0.75).all())
        assert bool((sizes / expected < 1.35).all())
        assert len(sizes.unique()) == SMALL.experts


def test_text_can_be_sent_to_it(folder: Path) -> None:
    vocabulary = read_vocabulary(folder / "tekken.json")
    assert len(vocabulary) == SMALL.vocab
    assert len(set(vocabulary.token_bytes)) == len(vocabulary.token_bytes)
    build_grammar_tokenizer(vocabulary, SMALL.vocab)
    ChatTokenizer.load(folder / "tekken.json")


def test_the_full_vocabulary_has_no_token_twice() -> None:
    vocab: list[dict[str, Any]] = synthetic_checkpoint.tekken(131_072)["vocab"]
    assert len({entry["token_bytes"] for entry in vocab}) == 130_072
