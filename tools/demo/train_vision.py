"""Gives a trained demo its eyes: a small Pixtral tower and projector, behind the text model as it is shipped.

Owns the run, the tower's sizes and its place in the checkpoint. The tower is transformers' PixtralVisionModel, so that
what sparkstral computes is checked against code that it does not share. By default the text model stays as it is, bit
by bit, and so do its bars; with --text-peak it is trained along, half of the steps on text.

    python -m tools.demo.train_vision --start CHECKPOINT --minutes 4 --out build/eyes
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import Mistral3Config, PixtralVisionConfig, PixtralVisionModel
from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector

from sparkstral.demo import Split, sample
from sparkstral.demo.skills.vision import MAX_SIDE
from tools.demo import model_config as shape
from tools.demo import native_layout
from tools.demo.documents import BatchSource
from tools.demo.export import computing_dtype, write_checkpoint
from tools.demo.packing import PackedBatch, pack
from tools.demo.rendering import Rendered, Renderer
from tools.demo.train import CALIBRATION_TOKENS, GRADIENT_LIMIT, LOG_EVERY_STEPS, DeviceBatch, Trainer, learning_rate

IMAGE_TOKEN = 10
DOCUMENT_TOKENS = 72  # of one question about a picture, at most
TEXT_SIZES = (49_152, 0.2, 6.0)  # as tools.demo.train has them
SHARD = "consolidated-vision.safetensors"
HIDDEN_SIZE, NUM_LAYERS, INTERMEDIATE_SIZE = 192, 4, 512  # 4.6 MB in bfloat16 with the projector
NAMES = {
    "patch_conv": "vision_encoder.patch_conv", "ln_pre": "vision_encoder.ln_pre",
    "transformer": "vision_encoder.transformer", "norm": "pre_mm_projector_norm",
    "patch_merger.merging_layer": "patch_merger.merging_layer", "linear_1": "vision_language_adapter.w_in",
    "linear_2": "vision_language_adapter.w_out", "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo",
    "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pictures:
    """A packed batch, and the pictures of its image tokens in order, padded to the largest."""

    text: PackedBatch
    pixels: NDArray[np.float32]  # [N, 3, MAX_SIDE, MAX_SIDE]
    sizes: list[tuple[int, int]]


class PictureSource(IterableDataset[Pictures]):
    """Batches without end; each worker has its own chance."""

    def __init__(self, tekken_path: Path, num_documents: int, seed: int) -> None:
        self._tekken_path = tekken_path
        self._num_documents = num_documents
        self._seed = seed

    def __iter__(self) -> Iterator[Pictures]:
        worker = get_worker_info()
        rng = random.Random(f"pictures {self._seed} {worker.id if worker else 0}")
        renderer = Renderer(self._tekken_path)
        while True:
            yield packed(
                [renderer.render(sample(rng, "vision", Split.TRAIN)) for _ in range(self._num_documents)],
                self._num_documents * DOCUMENT_TOKENS,
            )


def packed(documents: list[Rendered], num_tokens: int) -> Pictures:
    images = [image for document in documents for image in document.images]
    pixels = np.zeros((len(images), 3, MAX_SIDE, MAX_SIDE), dtype=np.float32)
    for row, image in zip(pixels, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    sizes = [(image.shape[1], image.shape[2]) for image in images]
    return Pictures(pack([(document, 1.0) for document in documents], num_tokens), pixels, sizes)


class Eyes(nn.Module):
    """Tower and projector, in float32."""

    def __init__(self, hidden_size: int, num_layers: int, intermediate_size: int) -> None:
        super().__init__()
        vision = PixtralVisionConfig(
            hidden_size=hidden_size, num_hidden_layers=num_layers, num_attention_heads=hidden_size // 64,
            intermediate_size=intermediate_size, image_size=MAX_SIDE, patch_size=14, hidden_act="silu",
            rope_parameters={"rope_theta": 10000.0, "rope_type": "axial"},
        )  # fmt: skip
        self.config = vision
        whole = Mistral3Config(vision_config=vision, text_config=shape.hf_config(), spatial_merge_size=2)
        self.tower = PixtralVisionModel(vision)
        self.projector = Mistral3MultiModalProjector(whole)
        self.projector.norm.variance_epsilon = 1e-5  # as the model's makers have it
        for module in self.projector.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def forward(self, pixels: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
        """[K, H]: the embeddings of all pictures in order."""
        features = self.tower(pixels, image_sizes=sizes).last_hidden_state[0]
        embeddings: Tensor = self.projector(features, sizes)
        return embeddings

    def native_state(self) -> dict[str, Tensor]:
        """Under the makers' names and in their order of rows, bfloat16."""
        state = {**self.tower.state_dict(), **self.projector.state_dict()}
        return {_native_name(name): _native_rows(name, tensor).bfloat16().cpu() for name, tensor in state.items()}

    def params(self) -> dict[str, object]:
        """The vision_encoder of a params.json."""
        return {
            "image_token_id": IMAGE_TOKEN, "image_break_token_id": 12, "image_end_token_id": 13,
            "intermediate_size": self.config.intermediate_size, "num_hidden_layers": self.config.num_hidden_layers,
            "num_attention_heads": self.config.num_attention_heads, "mm_projector_id": "patch_merge",
            "spatial_merge_size": 2, "hidden_size": self.config.hidden_size, "num_channels": 3,
            "image_size": MAX_SIDE, "max_image_size": MAX_SIDE, "patch_size": 14, "rope_theta": 10000.0,
            "add_pre_mm_projector_layer_norm": True, "adapter_bias": False,
        }  # fmt: skip


def _native_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    for theirs, native in NAMES.items():
        if stem == theirs or stem.startswith(theirs + "."):
            stem = native + stem.removeprefix(theirs)
            break
    head, _, last = stem.rpartition(".")
    return f"{head}.{NAMES[last]}.weight" if last in NAMES and last.endswith("_proj") else f"{stem}.weight"


def _native_rows(name: str, weight: Tensor) -> Tensor:
    """transformers turns each head's halves, the makers neighbours."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    return weight.view(-1, 2, 32, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


class VisionTrainer:
    """The eyes, and the text model that they are trained with."""

    def __init__(self, trainer: Trainer, eyes: Eyes, device: torch.device, text_is_trained: bool) -> None:
        self.trainer = trainer
        self.eyes = eyes.to(device)
        self._device = device
        self._text_is_trained = text_is_trained
        trainer.working.refresh()
        with torch.no_grad():  # the pictures' embeddings begin as large as the words'
            eyes.projector.linear_2.weight.mul_(trainer.working.model.get_input_embeddings().weight.float().std())
        if not text_is_trained:
            trainer.working.model.requires_grad_(False)
        self._optimiser = torch.optim.AdamW(
            self.eyes.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.02, fused=device.type == "cuda"
        )

    def step(self, pictures: Pictures, rate: float, text_rate: float) -> tuple[Tensor, Tensor]:
        """One update -> loss, and the share of tokens that are right."""
        trainer, model = self.trainer, self.trainer.working.model
        if self._text_is_trained:
            trainer.working.refresh()
        batch = DeviceBatch.of(pictures.text, self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            seen = self.eyes(torch.from_numpy(pictures.pixels).to(self._device), pictures.sizes)
        embedded = model.get_input_embeddings()(batch.token_ids)
        places = (batch.token_ids[0] == IMAGE_TOKEN).nonzero()[:, 0]
        embedded = embedded.index_put((torch.zeros_like(places), places), seen.to(embedded.dtype))
        trainer._attention.set_documents(batch.cu_seqlens, batch.borders)
        output = model.model(inputs_embeds=embedded, position_ids=batch.positions, use_cache=False)
        logits = model.lm_head(output.last_hidden_state[0][batch.rows]).float()
        loss = (cross_entropy(logits, batch.targets, reduction="none") * batch.weights).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.eyes.parameters(), GRADIENT_LIMIT)
        self._optimiser.param_groups[0]["lr"] = rate
        self._optimiser.step()
        self._optimiser.zero_grad()
        if self._text_is_trained:
            trainer.working.collect_gradients()
            torch.nn.utils.clip_grad_norm_(list(trainer.working.masters.values()), GRADIENT_LIMIT)
            for group in trainer.optimiser.param_groups:
                group["lr"] = text_rate
            trainer.optimiser.step()
            trainer.muon.step(text_rate)
        return loss.detach(), (logits.argmax(-1) == batch.targets).float().mean()


def write_eyes(eyes: Eyes, start: Path, folder: Path) -> int:
    """`start`'s checkpoint with the eyes in a file of their own; its bytes. In place if the folders are one."""
    folder.mkdir(parents=True, exist_ok=True)
    if start.resolve() != folder.resolve():
        for path in start.iterdir():
            shutil.copyfile(path, folder / path.name)
    state = {name: tensor.contiguous() for name, tensor in eyes.native_state().items()}
    save_file(state, folder / SHARD)
    index_path, params_path, tekken_path = (
        folder / name for name in (native_layout.INDEX_FILE, native_layout.PARAMS_FILE, native_layout.TEKKEN_FILE)
    )
    index = json.loads(index_path.read_text())
    index["weight_map"] = dict(sorted({**index["weight_map"], **dict.fromkeys(state, SHARD)}.items()))
    index["metadata"]["total_size"] += sum(tensor.nbytes for tensor in state.values())
    index_path.write_text(json.dumps(index, indent=0) + "\n")
    params = json.loads(params_path.read_text()) | {"vision_encoder": eyes.params()}
    params_path.write_text(json.dumps(params, indent=2) + "\n")
    tekken = json.loads(tekken_path.read_text(encoding="utf-8"))
    tekken["image"]["max_image_size"] = MAX_SIDE
    tekken_path.write_text(json.dumps(tekken, ensure_ascii=False), encoding="utf-8")
    return sum(path.stat().st_size for path in folder.iterdir())


def run(arguments: argparse.Namespace) -> None:
    tekken = arguments.start / native_layout.TEKKEN_FILE
    pictures = iter(
        DataLoader(
            PictureSource(tekken, arguments.documents, arguments.seed), batch_size=None, prefetch_factor=4,
            num_workers=arguments.workers, multiprocessing_context="fork",
        )
    )  # fmt: skip
    is_joint = arguments.text_peak > 0
    texts = BatchSource(tekken, TEXT_SIZES, arguments.seed, arguments.workers) if is_joint else None
    next(pictures)  # the workers are there before CUDA is touched
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(arguments.seed)
    trainer = Trainer(device, computing_dtype(device), arguments.seed, arguments.start, compiled=False)
    eyes = Eyes(HIDDEN_SIZE, NUM_LAYERS, INTERMEDIATE_SIZE)
    training = VisionTrainer(trainer, eyes, device, is_joint)
    arguments.out.mkdir(parents=True, exist_ok=True)
    begin, step = time.monotonic(), 0
    calibration = None
    with (arguments.out / "vision_log.jsonl").open("w") as log:
        while (share := (time.monotonic() - begin) / (60 * arguments.minutes)) < 1:
            text_rate = learning_rate(arguments.text_peak, step, share)
            if texts is not None:
                text = DeviceBatch.of(texts.take(), device)
                calibration = text.token_ids[0, :CALIBRATION_TOKENS]
                trainer.step(text, text_rate)
            loss, right = training.step(next(pictures), learning_rate(arguments.peak, step, share), text_rate)
            step += 1
            if step % LOG_EVERY_STEPS == 0 or step <= 3:
                elapsed_s = round(time.monotonic() - begin, 1)
                record = {"step": step, "elapsed_s": elapsed_s, "loss": round(loss.item(), 4)}
                record["right"] = round(right.item(), 4)
                print(json.dumps(record), flush=True)
                log.write(json.dumps(record) + "\n")
    folder = arguments.out / "checkpoint"
    if texts is not None and calibration is not None:
        texts.close()
        write_checkpoint(trainer.working.master_state(), calibration, tekken, folder)
        num_bytes = write_eyes(eyes, folder, folder)
    else:
        num_bytes = write_eyes(eyes, arguments.start, folder)
    print(f"{folder}: {num_bytes:,} bytes after {step} steps", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shipped = Path("src/sparkstral/demo/checkpoint")
    parser.add_argument("--start", type=Path, default=shipped, help="a demo's checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint/ and vision_log.jsonl")
    parser.add_argument("--minutes", type=float, default=3.5, help="training time; the learning rate ends at 0 then")
    parser.add_argument("--peak", type=float, default=1e-3, help="highest learning rate of the eyes")
    parser.add_argument("--text-peak", type=float, default=0.0, help="of the text model; 0: it stays as it is")
    parser.add_argument("--documents", type=int, default=256, help="pictures in a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=13, help="processes that draw")
    return parser.parse_args()


if __name__ == "__main__":
    run(parse())
