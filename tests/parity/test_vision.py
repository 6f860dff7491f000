"""Vision encoder and projector against transformers' Pixtral and Mistral3, from files that transformers has saved.

Heads are of the real size; weights are drawn so that scores have a standard deviation near 1. Images of several sizes
go through in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, Mistral4Config, PixtralVisionConfig

from sparkstral.checkpoint.load import load
from sparkstral.config import EngineConfig
from sparkstral.model.config import ModelConfig
from sparkstral.model.pixtral import PixtralEncoder, patches_of
from sparkstral.model.projector import Projector
from sparkstral.model.weights import ModelWeights, VisionWeights
from sparkstral.types import GenerationRequest, SamplingParams
from tests.support.answers import Answers
from tests.support.images import prompt_of, random_image
from tests.support.tiny_checkpoint import (
    MAX_IMAGE_SIZE,
    TINY,
    VISION_HIDDEN,
    VISION_LAYERS,
    VISION_WIDTH,
    TinyModel,
    hf_tensors,
    native_tensors,
    write_native,
)
from tests.support.tiny_engine import VOCAB_SIZE, tiny_config, write_tiny_model

TOLERANCE = 1e-4
SIZES = [(56, 112), (28, 28), (140, 84), (252, 252), (28, 308)]  # height and width in pixels
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Vision:
    config: ModelConfig
    weights: ModelWeights
    images: list[Tensor]
    hidden_states: list[Tensor]  # [T, D] into each layer and out of the last
    embeddings: Tensor  # [T / 4, H]


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Vision:
    config = Mistral3Config(
        text_config=Mistral4Config(**{**TINY.hf_config(), "rms_norm_eps": 1e-5}),
        vision_config=PixtralVisionConfig(
            hidden_size=256, intermediate_size=320, num_hidden_layers=4, num_attention_heads=4, image_size=1540,
            patch_size=14, hidden_act="silu", rope_parameters={"rope_theta": 10000.0, "rope_type": "axial"},
        ),
        spatial_merge_size=2, tie_word_embeddings=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model = Mistral3ForConditionalGeneration(config).eval()
        for name, parameter in model.model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or "ln_pre" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif "vision_tower" in name or "projector" in name:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
        images = [torch.randn(3, *size, generator=generator) for size in SIZES]
        states: list[Tensor] = []
        tower, projector = model.model.vision_tower, model.model.multi_modal_projector
        hooks = [layer.register_forward_pre_hook(lambda _, args: states.append(args[0][0]))
                 for layer in tower.transformer.layers]  # fmt: skip
        padded = torch.zeros(len(SIZES), 3, 252, 308)
        for row, image in zip(padded, images, strict=True):
            row[:, : image.shape[1], : image.shape[2]] = image
        features = tower(padded, image_sizes=SIZES).last_hidden_state[0]
        states.append(features)
        for hook in hooks:
            hook.remove()
        embeddings = projector(features, SIZES)
    folder = tmp_path_factory.mktemp("mistral3")
    model.save_pretrained(folder)
    return Vision(*load(folder), images, states, embeddings)


def of_vision(vision: Vision) -> VisionWeights:
    assert vision.weights.vision is not None
    return vision.weights.vision


def compute(vision: Vision, weights: VisionWeights, of: slice = slice(None)) -> tuple[list[Tensor], Tensor]:
    images = vision.images[of]
    grids = [(image.shape[1] // 14, image.shape[2] // 14) for image in images]
    assert vision.config.vision is not None
    encoder = PixtralEncoder(vision.config.vision, weights, CPU, torch.float32)
    patches = torch.cat([patches_of(image) for image in images])
    states = list(encoder.hidden_states(patches, grids))
    return states, Projector(weights, CPU, torch.float32).forward(states[-1], grids)


def assert_parity(vision: Vision, weights: VisionWeights) -> None:
    states, embeddings = compute(vision, weights)
    for ours, theirs in zip(states, vision.hidden_states, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(embeddings, vision.embeddings, rtol=0, atol=TOLERANCE)


def test_every_layer_and_the_projector_are_those_of_transformers(vision: Vision) -> None:
    assert_parity(vision, of_vision(vision))


def test_values_are_of_order_1(vision: Vision) -> None:
    for state in (*vision.hidden_states, vision.embeddings):
        assert 0.2 < float(state.std()) < 5


def test_an_image_alone_is_as_in_the_batch(vision: Vision) -> None:
    _, together = compute(vision, of_vision(vision))
    begin = 0
    for i, (height, width) in enumerate(SIZES):
        end = begin + height * width // 28**2
        _, alone = compute(vision, of_vision(vision), slice(i, i + 1))
        torch.testing.assert_close(alone, together[begin:end], rtol=0, atol=1e-5)
        begin = end


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "o_proj", "gate", "up", "down", "attention_norm"])
def test_a_weight_that_is_1_percent_off_is_noticed(vision: Vision, name: str) -> None:
    weights = of_vision(vision)
    layer = weights.layers[1]
    off = replace(layer, **{name: getattr(layer, name) * 1.01})
    with pytest.raises(AssertionError):
        assert_parity(vision, replace(weights, layers=(weights.layers[0], off, *weights.layers[2:])))


def test_pairs_taken_as_halves_are_noticed(vision: Vision) -> None:
    weights = of_vision(vision)
    layers = tuple(
        replace(layer, q_proj=halves(layer.q_proj), k_proj=halves(layer.k_proj)) for layer in weights.layers
    )
    with pytest.raises(AssertionError):
        assert_parity(vision, replace(weights, layers=layers))


def halves(weight: Tensor) -> Tensor:
    return weight.view(-1, 32, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def test_the_files_are_of_the_layout_that_the_test_means(vision: Vision) -> None:
    assert vision.config.vision is not None
    assert vision.config.vision.max_image_tokens == 3025
    assert vision.config.vision.max_patches == 12_100


def test_a_prompt_with_images_is_as_likely_as_transformers_finds_it(tmp_path: Path) -> None:
    """Through the whole engine, in chunks that end within images: every place of every embedding counts."""
    model = TinyModel(vocab_size=VOCAB_SIZE)
    tensors = native_tensors(model, "bf16", with_vision=True)
    write_tiny_model(tmp_path, with_vision=True)
    write_native(tmp_path, model, tensors=tensors, with_vision=True)
    drawn = [random_image(seed, *size) for seed, size in enumerate([(3, 2), (1, 5), (4, 4)])]
    token_ids, images = prompt_of(1, 50, drawn[0], 60, 61, drawn[1], drawn[2], 70, 3)
    params = SamplingParams(max_tokens=1, temperature=0, stop_token_ids=(), num_prompt_logprobs=0)
    config: EngineConfig = replace(tiny_config(tmp_path), max_num_seqs=2, max_num_batched_tokens=11)
    answers = Answers(config, [GenerationRequest("a", token_ids, params, images=images)])
    ours = torch.tensor([told.logprob for output in answers.outputs["a"] for told in output.prompt_logprobs])

    oracle = Mistral3ForConditionalGeneration(
        Mistral3Config(
            text_config=Mistral4Config(**model.hf_config()),
            vision_config=PixtralVisionConfig(
                hidden_size=VISION_HIDDEN, intermediate_size=VISION_WIDTH, num_hidden_layers=VISION_LAYERS,
                num_attention_heads=VISION_HIDDEN // 64, image_size=MAX_IMAGE_SIZE, patch_size=14, hidden_act="silu",
                rope_parameters={"rope_theta": 10000.0, "rope_type": "axial"},
            ),
            image_token_index=10, spatial_merge_size=2, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip
    oracle.load_state_dict(hf_tensors(tensors, "model.language_model.", stacked=True))
    for layer in oracle.model.language_model.layers:
        layer.self_attn.scaling = 128**-0.5  # see tests/parity/oracle.py
    oracle.model.multi_modal_projector.norm.variance_epsilon = 1e-5  # as the model's makers have it
    sizes = [(28 * image.num_rows, 28 * image.num_columns) for image in images]
    pixels = torch.zeros(3, 3, 112, 140)
    for row, image, (height, width) in zip(pixels, images, sizes, strict=True):
        row[:, :height, :width] = torch.frombuffer(bytearray(image.pixels), dtype=torch.float32).view(3, height, width)
    with torch.inference_mode():
        logits = oracle(
            input_ids=torch.tensor([token_ids]), pixel_values=pixels, image_sizes=torch.tensor(sizes), use_cache=False
        ).logits[0]
    theirs = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
