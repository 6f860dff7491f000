"""Several settings at once are what each of them is alone, in chunks as at once; and what is said of the positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sparkstral.bench import precision, teacher
from sparkstral.bench.loss import BLOCK_SIZE, loss_of, num_blocks_for
from sparkstral.bench.loss_text import ScoredText
from sparkstral.bench.precision import NamedText, measure, summarize
from sparkstral.bench.settings import LEFT_OUT, SETTINGS, STORED, Setting
from sparkstral.bench.teacher import Positions, TeacherForced
from sparkstral.checkpoint.load import load
from sparkstral.demo.location import DEMO_CHECKPOINT
from sparkstral.errors import ConfigError
from sparkstral.model.config import ModelConfig
from sparkstral.model.mistral4 import Mistral4
from sparkstral.model.weights import ModelWeights
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.runner.model_runner import ModelRunner
from tests.support.tiny_checkpoint import write_native

CPU, FLOAT = torch.device("cpu"), torch.float32
Loaded = tuple[ModelConfig, ModelWeights]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(write_native(tmp_path_factory.mktemp("tiny")))


def texts(*lengths: int) -> list[ScoredText]:
    generator = torch.Generator().manual_seed(0)
    ids = [tuple(torch.randint(0, 96, (length,), generator=generator).tolist()) for length in lengths]
    return [ScoredText(each, tuple(range(1, len(each)))) for each in ids]


def forced(loaded: Loaded, lengths: tuple[int, ...], *settings: Setting) -> list[Positions]:
    return TeacherForced(*loaded, CPU, torch.float32).run(texts(*lengths), settings)


def test_each_setting_is_the_model_of_that_setting(loaded: Loaded) -> None:
    """The loss of each token is that of `Mistral4`, as stored and with weights in FP8."""
    plain, small = forced(loaded, (70, 9), Setting(), Setting(dense="fp8"))
    for found, dense in ((plain, "bf16"), (small, "fp8")):
        model = Mistral4(*loaded, CPU, torch.float32, dense)  # type: ignore[arg-type]
        pool = allocate_latent_pool(loaded[0].num_hidden_layers, num_blocks_for(texts(70, 9)), BLOCK_SIZE, CPU, FLOAT)
        expected = loss_of(ModelRunner(model, pool, 0, {}.__getitem__), texts(70, 9), at_once=2)
        torch.testing.assert_close(found.loss, expected, rtol=0, atol=1e-5)
    assert float((plain.loss - small.loss).abs().max()) > 1e-3


def test_chunks_are_the_whole(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (SETTINGS[STORED], SETTINGS["fp8"])
    whole = forced(loaded, (70, 9, 30), *settings)
    monkeypatch.setattr(teacher, "CHUNK_TOKENS", 32)
    monkeypatch.setattr(teacher, "LOGITS_ROWS", 7)
    chunks = forced(loaded, (70, 9, 30), *settings)
    for setting, one, many in zip(settings, whole, chunks, strict=True):
        assert len(one.loss) == 69 + 8 + 29
        # In FP8 the last bit of a latent can be another code: a single step of one.
        tolerance = 1e-4 if setting.kv == "bf16" else 2e-2
        torch.testing.assert_close(one.loss, many.loss, rtol=0, atol=tolerance)


def test_divergence_is_zero_from_itself_and_grows_with_what_is_changed(loaded: Loaded) -> None:
    same, small, other = forced(loaded, (70,), Setting(), Setting(kv="fp8"), SETTINGS["scaled-softmax"])
    assert float(same.divergence.abs().max()) < 1e-6
    assert bool(same.agrees.all())
    assert 0 < float(small.divergence.mean()) < float(other.divergence.mean())


class FakeTokenizer:
    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))


def test_the_worst_position_is_found_with_what_stood_before_it() -> None:
    named = [NamedText("a", ScoredText((5, 6, 7), (1,))), NamedText("b", ScoredText((8, 9, 10, 11), (3,)))]
    count = 2 + 3
    first = Positions(
        torch.arange(count).float(), torch.zeros(count), torch.ones(count).bool(), torch.arange(count) + 50
    )
    divergence = torch.tensor([0.1, 0.2, 0.3, 0.9, 0.4])
    agrees = torch.tensor([True, True, True, False, True])
    other = replace(first, loss=first.loss + 1, divergence=divergence, agrees=agrees, likeliest=first.likeliest + 20)
    found: dict[str, Any] = summarize(first, other, named, FakeTokenizer())  # type: ignore[arg-type]
    assert found["worst"][0] == {
        "text": "b", "position": 2, "kl": pytest.approx(0.9), "before": "8 9", "token": "10", "likeliest_first": "53",
        "likeliest": "73",
    }  # fmt: skip
    assert found["top1_agreement"] == pytest.approx(0.8)
    a, b = found["texts"]
    assert (a["num_positions"], a["num_counted"], a["loss"]) == (2, 1, 1.0)
    assert (b["num_positions"], b["num_counted"], b["loss_first"]) == (3, 1, 4.0)
    assert b["kl_mean"] == pytest.approx((0.3 + 0.9 + 0.4) / 3)
    assert b["kl_max"] == pytest.approx(0.9)


def test_a_text_longer_than_the_model_is_refused(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(loaded[0], max_position_embeddings=100)
    monkeypatch.setattr(precision, "load", lambda *_: (short, loaded[1]))
    with pytest.raises(ConfigError, match=r"--lengths? 300.*the model has positions for 100"):
        measure(DEMO_CHECKPOINT, [STORED, "fp8"], (300,), (), CPU, {})


def test_what_the_engine_lacks_is_said() -> None:
    assert set(LEFT_OUT) == {"w4a4"}
    assert not SETTINGS["scaled-softmax"].is_of_engine
