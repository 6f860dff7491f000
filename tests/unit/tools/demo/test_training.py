from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import Mistral4ForCausalLM

from tools.demo import native_layout
from tools.demo.export import model_of, rounded, write_checkpoint
from tools.demo.packing import PackedBatch, pack
from tools.demo.rendering import Rendered
from tools.demo.train import DeviceBatch, Trainer, learning_rate
from tools.demo.write_hf_layout import write_hf_layout

CPU = torch.device("cpu")
TEKKEN = Path(__file__).parents[4] / "src/sparkstral/demo/checkpoint/tekken.json"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(CPU, torch.float32, seed=3, start=None, compiled=False)


def small_batch() -> PackedBatch:
    generator = np.random.default_rng(1)
    documents = [
        Rendered(
            [1, 3, *generator.integers(1000, 1040, size=12).tolist(), 4, 1500 + i, 1600 + i, 2], [(15, 18)]
        )
        for i in range(5)
    ]
    return pack([(document, 1.0) for document in documents], 96)


def test_documents_do_not_see_each_other(trainer: Trainer) -> None:
    batch = DeviceBatch.of(small_batch(), CPU)
    together = trainer.hidden(batch)
    begin, end = batch.borders[2], batch.borders[3]
    alone = DeviceBatch.of(
        PackedBatch(
            small_batch().token_ids[begin:end],
            small_batch().labels[begin:end],
            small_batch().weights[begin:end],
            np.array([0, end - begin], dtype=np.int32),
        ),
        CPU,
    )
    torch.testing.assert_close(trainer.hidden(alone), together[begin:end], rtol=1e-4, atol=1e-5)


def test_packed_attention_is_the_attention_of_transformers(trainer: Trainer) -> None:
    trainer.working.refresh()
    batch = DeviceBatch.of(small_batch(), CPU)
    begin, end = batch.borders[1], batch.borders[2]
    plain = model_of(rounded_experts_only(trainer), CPU, torch.float32)
    with torch.no_grad():
        expected = plain.model(input_ids=batch.token_ids[:, begin:end]).last_hidden_state[0]
        torch.testing.assert_close(trainer.hidden(batch)[begin:end], expected, rtol=1e-4, atol=1e-5)


def rounded_experts_only(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer.working.master_state()
    return {
        name: value if ".mlp." in name and "gate.weight" not in name else state[name]
        for name, value in rounded(state).items()
    }


def test_checkpoint_holds_what_was_computed_with(trainer: Trainer, tmp_path: Path) -> None:
    state = trainer.working.master_state()
    calibration = torch.from_numpy(small_batch().token_ids).long()
    size = write_checkpoint(state, calibration, TEKKEN, tmp_path)
    assert size < 40_000_000
    read = native_layout.read(tmp_path)
    for name, value in rounded(state).items():
        torch.testing.assert_close(read[name], value, rtol=0.0, atol=0.0, msg=name)

    params = json.loads((tmp_path / "params.json").read_text())
    weight_map = json.loads((tmp_path / native_layout.INDEX_FILE).read_text())["weight_map"]
    assert len(weight_map) == params["n_layers"] * (10 + 12 * (params["moe"]["num_experts"] + 1)) + 3
    with safe_open(tmp_path / weight_map["layers.0.shared_experts.w2.input_global_scale"], "pt") as file:
        assert file.get_slice("layers.0.shared_experts.w2.input_global_scale").get_dtype() == "BF16"
        assert file.get_slice("layers.0.experts.15.w1.weight_scale").get_dtype() == "F8_E4M3"
        assert file.get_slice("layers.0.experts.15.w1.weight_packed").get_shape() == [192, 192]
        assert 0 < float(file.get_tensor("layers.0.experts.15.w1.input_global_scale")) < float("inf")

    write_hf_layout(tmp_path, tmp_path / "hf", torch.float32)
    loaded = Mistral4ForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with torch.no_grad():
        expected = model_of(read, CPU, torch.float32)(calibration[None]).logits
        torch.testing.assert_close(loaded(calibration[None]).logits, expected, rtol=1e-5, atol=1e-5)
    assert {layer.self_attn.scaling for layer in loaded.model.layers} == {128**-0.5}


def test_loss_falls_on_a_batch_seen_again_and_again() -> None:
    trainer = Trainer(CPU, torch.float32, seed=4, start=None, compiled=False)
    batch = DeviceBatch.of(small_batch(), CPU)
    losses = [float(trainer.step(batch, 1e-3)[0]) for _ in range(5)]
    assert losses[-1] < losses[0] - 2.0


def test_learning_rate_warms_up_by_steps_and_ends_by_the_clock() -> None:
    assert learning_rate(1.0, 0, 0.0) == pytest.approx(1 / 150)
    assert learning_rate(1.0, 1000, 0.5) == pytest.approx(0.5)
    assert learning_rate(1.0, 1000, 1.0) == 0.0
    assert learning_rate(1.0, 1000, 1.2) == 0.0
