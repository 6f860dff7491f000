"""Eyes for the demo: what is trained is what is written and served, and the text model stays as it is."""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkstral.chat.render import render
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.checkpoint.load import load
from sparkstral.demo import Split, sample
from sparkstral.model.pixtral import PixtralEncoder, patches_of
from sparkstral.model.projector import ImageModel, Projector
from sparkstral.types import ChatMessage, ChatRequest, ImagePart, TextPart
from tools.demo.rendering import Renderer
from tools.demo.train import Trainer
from tools.demo.train_vision import Eyes, VisionTrainer, packed, write_eyes

CPU = torch.device("cpu")
START = Path(__file__).parents[4] / "src/sparkstral/demo/checkpoint"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped text with eyes after two steps."""
    torch.set_num_threads(1)
    trainer = Trainer(CPU, torch.float32, seed=3, start=START, compiled=False)
    eyes = Eyes(128, 1, 96)
    training = VisionTrainer(trainer, eyes, CPU, text_is_trained=False)
    before = {name: tensor.clone() for name, tensor in eyes.state_dict().items()}
    text = trainer.working.model.lm_head.weight.clone()
    renderer, rng = Renderer(START / "tekken.json"), random.Random(0)
    pictures = packed([renderer.render(sample(rng, "vision", Split.TRAIN)) for _ in range(4)], 300)
    losses = [training.step(pictures, 1e-3, 0.0)[0].item() for _ in range(4)]
    assert losses[-1] < losses[0]
    assert all(not torch.equal(tensor, before[name]) for name, tensor in eyes.state_dict().items())
    assert torch.equal(trainer.working.model.lm_head.weight, text)
    out = tmp_path_factory.mktemp("eyes")
    torch.save(eyes.state_dict(), out.parent / "eyes.pt")
    assert write_eyes(eyes, START, out) < 42_000_000
    return out


def test_the_written_eyes_see_what_the_trained_ones_saw(folder: Path) -> None:
    config, weights = load(folder)
    assert config.vision is not None
    assert weights.vision is not None
    image_model = ImageModel(
        PixtralEncoder(config.vision, weights.vision, CPU, torch.float32), Projector(weights.vision, CPU, torch.float32)
    )
    eyes = Eyes(128, 1, 96)
    trained = torch.load(folder.parent / "eyes.pt")
    eyes.load_state_dict({name: tensor.bfloat16().float() for name, tensor in trained.items()})
    pixels = torch.randn(2, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    sizes = [(84, 112), (112, 56)]
    patches = torch.cat([patches_of(image[:, :h, :w]) for image, (h, w) in zip(pixels, sizes, strict=True)])
    ours = image_model(patches, [(h // 14, w // 14) for h, w in sizes])
    with torch.inference_mode():
        torch.testing.assert_close(ours, eyes(pixels, sizes), rtol=0, atol=1e-4)


def test_the_server_renders_what_was_trained(folder: Path) -> None:
    conversation = sample(random.Random(5), "vision", Split.HELD_OUT, "digit")
    theirs = Renderer(folder / "tekken.json").render(conversation)
    picture, question = conversation.messages[0]["content"]
    part = ImagePart("here", base64.b64decode(picture["image_url"]["url"].partition(",")[2]))
    request = ChatRequest((ChatMessage("user", (part, TextPart(question["text"]))),))
    prompt = render(request, ChatTokenizer.load(folder)).prompt
    assert list(prompt.token_ids) == theirs.token_ids[: len(prompt.token_ids)]
    assert prompt.images[0].pixels == theirs.images[0].tobytes()
    assert replace(prompt.images[0], pixels=b"").num_tokens <= 20
