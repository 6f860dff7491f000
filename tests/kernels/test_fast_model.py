"""The fast model in the interpreter against the plain one: prompts, decode steps, mixed batches, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkstral.checkpoint.load import load
from sparkstral.errors import ConfigError
from sparkstral.kernels.fp8_quantize import Fp8Rows, dequantize
from sparkstral.model.fast_batch import AbsorbedGroup, AttentionOrder, FastBatch
from sparkstral.model.fast_mistral4 import FastMistral4
from sparkstral.model.mistral4 import Mistral4
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.runner.fast_batch import StepShape, build_fast_batch
from sparkstral.runner.forward_batch import build_forward_batch
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.types import Precision, ScheduledRequest, SchedulerOutput
from tests.support.fast_model import LIMITS, small_configs, with_stacks
from tests.support.images import prompt_of, random_image
from tests.support.tiny_checkpoint import TinyModel, write_native

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS = 16, 64
NOTHING = torch.zeros(1, dtype=torch.int64)


@dataclass(frozen=True)
class Models:
    plain: Mistral4
    fast: FastMistral4
    kv: Precision = "bf16"
    encoder: EncoderCache | None = None

    def pool(self) -> Tensor:
        pool = allocate_latent_pool(
            self.plain.config.num_hidden_layers, NUM_BLOCKS, BLOCK_SIZE, CPU, torch.float32, self.kv
        )
        return pool.fill_(torch.nan if self.kv == "bf16" else 0xFF)  # NaN in every plane

    def shape(self) -> StepShape:
        return StepShape(BLOCK_SIZE, LIMITS.max_num_seqs, self.fast.kernels.prefill, LIMITS.prefill_keys)

    def by_plain(self, step: Sequence[ScheduledRequest], pool: Tensor) -> Tensor:
        return self.plain.forward(build_forward_batch(step, BLOCK_SIZE, CPU, (), self.encoder), pool)

    def by_fast(self, step: Sequence[ScheduledRequest], pool: Tensor) -> Tensor:
        """Logits in the order of `step`."""
        batch, requests = build_fast_batch(step, self.shape(), CPU, {}, NOTHING, encoder=self.encoder)
        logits = self.fast.forward(batch, pool)
        sampling = [request for request, part in enumerate(step) if part.samples]
        return logits[[requests.index(request) for request in sampling]]


@pytest.fixture(scope="module")
def fp8_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    config, weights = load(write_native(tmp_path_factory.mktemp("fp8"), TinyModel(num_heads=3)))
    plain = Mistral4(config, weights, CPU, torch.float32, "fp8")
    fast = FastMistral4(config, with_stacks(weights), small_configs(), LIMITS, CPU, torch.float32, "fp8")
    return Models(plain, fast, "fp8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = write_native(tmp_path_factory.mktemp("tiny"), TinyModel(num_heads=3))
    config, weights = load(folder)
    plain = Mistral4(config, weights, CPU, torch.float32)
    fast = FastMistral4(config, with_stacks(weights), small_configs(), LIMITS, CPU, torch.float32)
    return Models(plain, fast)


def tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def part(name: str, token_ids: Sequence[int], begin: int, row: int, samples: bool = True) -> ScheduledRequest:
    return ScheduledRequest(name, tuple(token_ids), begin, tuple(range(1 + 12 * row, 13 + 12 * row)), samples)


def assert_close(fast: Tensor, plain: Tensor) -> None:
    """Eight products of the experts are added in float16, twice a layer; the plain form rounds to float32."""
    assert fast.shape == plain.shape
    assert float((fast - plain).abs().max()) < 2e-2 * float(plain.std())


def decode_batch(rows: Sequence[tuple[int, int, int]], size: int) -> FastBatch:
    """One token each of (token, position, row of the pool), padded to `size`."""
    pad = size - len(rows)
    cells = [(1 + 12 * row + position // BLOCK_SIZE) * BLOCK_SIZE + position % BLOCK_SIZE for _, position, row in rows]
    tables = torch.zeros(size, 12, dtype=torch.int32)
    for i, (_, _, row) in enumerate(rows):
        tables[i] = torch.arange(1 + 12 * row, 13 + 12 * row)
    group = AbsorbedGroup(
        slice(0, size),
        tables,
        torch.arange(size + 1, dtype=torch.int32),
        torch.tensor([position + 1 for _, position, _ in rows] + [0] * pad, dtype=torch.int32),
        1,
    )
    return FastBatch(
        input_ids=torch.tensor([token for token, _, _ in rows] + [0] * pad),
        sources=torch.full((size,), -1, dtype=torch.int32),
        previous=NOTHING,
        positions=torch.tensor([position for _, position, _ in rows] + [0] * pad),
        slots=torch.tensor(cells + [-1] * pad),
        absorbed=(group,),
        expanded=None,
        logits_rows=None,
    )


PROMPTS = [tokens(37, 1), tokens(5, 2), tokens(90, 3)]


def filled(models: Models) -> tuple[Tensor, Tensor]:
    """The plain model's pool, twice, after PROMPTS."""
    pool = models.pool()
    models.by_plain([part(str(i), prompt, 0, i) for i, prompt in enumerate(PROMPTS)], pool)
    return pool, pool.clone()


def test_prompts(models: Models) -> None:
    step = [part(str(i), prompt, 0, i) for i, prompt in enumerate(PROMPTS[:2])]
    plain_pool, pool = models.pool(), models.pool()
    assert_close(models.by_fast(step, pool), models.by_plain(step, plain_pool))
    assert torch.equal(pool.isnan(), plain_pool.isnan())
    assert float((pool - plain_pool).nan_to_num().abs().max()) < 2e-2


def test_decode_steps(models: Models) -> None:
    plain_pool, pool = filled(models)
    step = [part(str(i), (7 + i,), len(prompt), i) for i, prompt in enumerate(PROMPTS)]
    batch = decode_batch([(7 + i, len(prompt), i) for i, prompt in enumerate(PROMPTS)], 3)
    logits = models.fast.forward(batch, pool)
    assert_close(logits, models.by_plain(step, plain_pool))


def test_a_request_has_the_same_bits_in_every_batch(models: Models) -> None:
    """Of one form: one row takes its own for the dense products, more than four another for the experts, and their
    sums have another order."""
    _, pool = filled(models)
    rows = [(7 + i, len(prompt), i) for i, prompt in enumerate(PROMPTS)]
    together = models.fast.forward(decode_batch(rows, 4), pool.clone())
    more = models.fast.forward(decode_batch(rows, 6), pool.clone())
    assert torch.equal(models.fast.forward(decode_batch(rows[2:], 5), pool.clone())[0], more[2])
    for i, row in enumerate(rows):
        assert torch.equal(models.fast.forward(decode_batch([row], 3), pool.clone())[0], together[i])
        assert_close(models.fast.forward(decode_batch([row], 1), pool.clone())[0], together[i])


def test_padding_writes_nothing(models: Models) -> None:
    _, pool = filled(models)
    before = pool.clone()
    models.fast.forward(decode_batch([(7, 37, 0)], 4), pool)
    changed = (pool != before) & ~(pool.isnan() & before.isnan())
    assert changed.nonzero()[:, 1:3].unique(dim=0).tolist() == [[3, 5]]


def test_decode_rows_short_chunks_and_prompts_in_one_batch(models: Models) -> None:
    plain_pool, pool = filled(models)
    step = [
        part("prompt", tokens(20, 5), 0, 3),
        part("decode", (7,), 37, 0),
        part("chunk", tokens(20, 6), 90, 2, samples=False),
        part("short", tokens(3, 7), 5, 1),
    ]
    assert AttentionOrder.of([20, 1, 20, 3], [20, 38, 110, 8], 16) == AttentionOrder((1,), (3,), (0, 2))
    assert_close(models.by_fast(step, pool), models.by_plain(step, plain_pool))


def test_short_chunks_are_absorbed_while_the_workspace_lasts() -> None:
    assert AttentionOrder.of([1, 3, 8, 9, 2], [38, 93, 99, 99, 99], 16) == AttentionOrder((0,), (1, 2), (3, 4))
    assert AttentionOrder.of([1, 3], [1, 3], 16) == AttentionOrder((0,), (), (1,))


def test_a_token_that_no_host_has_seen(models: Models) -> None:
    _, pool = filled(models)
    step = [part("a", (7,), 37, 0), part("b", tokens(2, 8), 0, 3)]
    expected = models.by_fast(step, pool.clone())
    unseen = [part("a", (-1,), 37, 0), step[1]]
    batch, _ = build_fast_batch(unseen, models.shape(), CPU, {"a": 2}, torch.tensor([3, 4, 7]))
    assert torch.equal(models.fast.forward(batch, pool.clone()), expected)


def test_a_step_without_logits(models: Models) -> None:
    assert models.by_fast([part("a", PROMPTS[1], 0, 0, samples=False)], models.pool()).shape == (0, 96)


def test_experts_of_another_form_are_refused(tmp_path: Path) -> None:
    config, weights = load(write_native(tmp_path, experts="bf16"))
    with pytest.raises(ConfigError, match="--kernels reference"):
        FastMistral4(config, weights, small_configs(), LIMITS, CPU, torch.float32)


def test_an_images_embeddings_take_the_places_of_its_tokens(models: Models) -> None:
    """In a batch whose requests the fast form puts into another order."""
    drawn = torch.randn(3, TinyModel().hidden_size, generator=torch.Generator().manual_seed(4))
    encoder = EncoderCache(lambda patches, grids: drawn, 5, 25, TinyModel().hidden_size, CPU, torch.float32)
    token_ids, images = prompt_of(5, random_image(0, 1, 2), 6, random_image(1, 1, 1))
    step = (replace(part("p", token_ids, 0, 0), images=images), part("d", [7], 0, 1))
    encoder.begin_step(SchedulerOutput(1, step, images=images))
    seeing = replace(models, encoder=encoder)
    plain = seeing.by_plain(step, models.pool())
    assert_close(seeing.by_fast(step, models.pool()), plain)
    blind = models.by_plain(step, models.pool())
    assert float((plain[0] - blind[0]).abs().max()) > 0.1
    assert torch.equal(plain[1], blind[1])


def test_all_in_fp8(fp8_models: Models) -> None:
    """A prompt of more rows than the small product takes, then a decode step."""
    models = fp8_models
    step = [part("0", PROMPTS[0], 0, 0)]
    plain_pool, pool = models.pool(), models.pool()
    assert_close_in_fp8(models.by_fast(step, pool), models.by_plain(step, plain_pool))
    step = [part("0", (7,), len(PROMPTS[0]), 0)]
    logits = models.fast.forward(decode_batch([(7, len(PROMPTS[0]), 0)], 1), pool)
    assert_close_in_fp8(logits, models.by_plain(step, plain_pool))


def test_a_weight_in_fp8_is_decoded_in_pieces(fp8_models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = fp8_models.fast
    weight, x = fast._lm_head, torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert isinstance(weight, Fp8Rows)
    monkeypatch.setattr("sparkstral.model.fast_mistral4.DECODED_AT_ONCE", 40 * 64)
    expected = x @ dequantize(weight, torch.float32).T
    torch.testing.assert_close(fast._whole(x, weight), expected, rtol=0, atol=1e-5)


def assert_close_in_fp8(fast: Tensor, plain: Tensor) -> None:
    """A latent whose last bit differs may have another code, 2^-4 of it away: wider than `assert_close`, and still far
    below what a scale that is off by its least, a factor of two, does to a weight."""
    assert fast.shape == plain.shape
    assert float((fast - plain).abs().max()) < 6e-2 * float(plain.std())


def test_fp8_is_not_bf16(models: Models, fp8_models: Models) -> None:
    """What is compared above is in FP8."""
    step = [part("a", PROMPTS[0], 0, 0)]
    difference = models.by_plain(step, models.pool()) - fp8_models.by_plain(step, fp8_models.pool())
    assert float(difference.abs().max()) > 1e-2
