"""Trains the demo model and writes its checkpoint: one script, one GPU, a fixed number of minutes.

Owns the run: schedule by the clock, optimiser, log, checkpoints. The model is transformers'
Mistral4ForCausalLM, so that what sparkstral computes is checked against code that it does not share.

    python -m tools.demo.train --minutes 15 --out build/demo
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Mistral4ForCausalLM

from tools.demo import model_config as shape
from tools.demo import native_layout
from tools.demo.documents import BatchSource
from tools.demo.export import computing_dtype, write_checkpoint
from tools.demo.muon import Muon
from tools.demo.packed_attention import IMPLEMENTATION, PackedAttention
from tools.demo.packing import IGNORED_LABEL, PackedBatch
from tools.demo.working_model import FLAT, WorkingModel

WARM_UP_STEPS = 150
BALANCE_COEFFICIENT = 0.01
GRADIENT_LIMIT = 1.0
LOG_EVERY_STEPS = 50
SAVE_EVERY_S = 150.0
CALIBRATION_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A packed batch on the device. rows [S] are the positions whose next token is learned."""

    token_ids: Tensor  # [1, T] int64
    positions: Tensor  # [1, T] int64
    cu_seqlens: Tensor  # [D + 1] int32
    borders: list[int]
    rows: Tensor  # [S] int64
    targets: Tensor  # [S] int64
    weights: Tensor  # [S] float32, their sum is 1

    @staticmethod
    def of(batch: PackedBatch, device: torch.device) -> DeviceBatch:
        """Copy a batch to the device without waiting for it."""

        def moved(tensor: Tensor) -> Tensor:
            if device.type == "cuda":
                tensor = tensor.pin_memory()
            return tensor.to(device, non_blocking=True)

        labels = torch.from_numpy(batch.labels).long()
        rows = (labels != IGNORED_LABEL).nonzero()[:, 0]
        weights = torch.from_numpy(batch.weights)[rows]
        return DeviceBatch(
            token_ids=moved(torch.from_numpy(batch.token_ids).long()[None]),
            positions=moved(torch.from_numpy(batch.positions)[None]),
            cu_seqlens=moved(torch.from_numpy(batch.cu_seqlens)),
            borders=batch.cu_seqlens.tolist(),
            rows=moved(rows),
            targets=moved(labels[rows]),
            weights=moved(weights / weights.sum()),
        )


class Trainer:
    """One model, its optimiser and the step that moves it."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, seed: int, start: Path | None, compiled: bool
    ) -> None:
        torch.manual_seed(seed)
        config = shape.hf_config()
        config._attn_implementation = IMPLEMENTATION
        config._experts_implementation = "grouped_mm"
        self._attention = PackedAttention()
        self._attention.register()
        model = Mistral4ForCausalLM(config)
        if start is not None:
            model.load_state_dict(native_layout.read(start))
        self.working = WorkingModel(model.to(device), dtype)
        self.working.balance_experts(BALANCE_COEFFICIENT)
        if compiled:
            for layer in model.model.layers:
                layer.compile(dynamic=False)
        masters = self.working.masters
        self.muon = Muon(master for name, master in masters.items() if name not in FLAT)
        self.optimiser = torch.optim.AdamW(
            [
                {"params": [masters["matrices"]], "weight_decay": 0.1},
                {"params": [masters["vectors"]], "weight_decay": 0.0},
            ],
            lr=0.0,
            betas=(0.9, 0.95),
            fused=device.type == "cuda",
        )

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """[T, hidden_size]: what the head is given."""
        self._attention.set_documents(batch.cu_seqlens, batch.borders)
        output = self.working.model.model(
            input_ids=batch.token_ids, position_ids=batch.positions, use_cache=False
        )
        states: Tensor = output.last_hidden_state[0]
        return states

    def step(self, batch: DeviceBatch, learning_rate: float) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the gradient's norm, both on the device."""
        self.working.refresh()
        logits = self.working.model.lm_head(self.hidden(batch)[batch.rows])
        loss = (cross_entropy(logits.float(), batch.targets, reduction="none") * batch.weights).sum()
        loss.backward()
        self.working.collect_gradients()
        norm = torch.nn.utils.clip_grad_norm_(list(self.working.masters.values()), GRADIENT_LIMIT)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        self.muon.step(learning_rate)
        return loss.detach(), norm


def learning_rate(peak: float, step: int, elapsed_share: float) -> float:
    """Linear warm-up by steps, then linear to zero by the clock."""
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * max(0.0, 1.0 - elapsed_share)


def run(arguments: argparse.Namespace) -> None:
    """Train for the given minutes and write the checkpoint, the log beside it."""
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    sizes = (arguments.tokens, arguments.long_share, arguments.long_weight)
    source = BatchSource(arguments.tekken, sizes, arguments.seed, arguments.workers)
    torch.set_num_threads(2)  # the workers need the other cores
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(device, computing_dtype(device), arguments.seed, arguments.start, arguments.compile)
    batch = DeviceBatch.of(source.take(), device)
    begin = saved = time.monotonic()
    budget_s = arguments.minutes * 60
    step = tokens = 0

    def save(name: str) -> None:
        sample = batch.token_ids[0, :CALIBRATION_TOKENS]
        size = write_checkpoint(trainer.working.master_state(), sample, arguments.tekken, out / name)
        print(f"{out / name}: {size:,} bytes", flush=True)

    waited_s = 0.0
    with (out / "training_log.jsonl").open("w") as log:

        def note(record: dict[str, Any]) -> None:
            line = json.dumps(record)
            print(line, flush=True)
            log.write(line + "\n")
            log.flush()

        settings = {key: str(value) for key, value in vars(arguments).items()}
        note({"settings": settings, "torch": torch.__version__, "device": _device_name(device)})
        while (elapsed_s := time.monotonic() - begin) < budget_s:
            rate = learning_rate(arguments.peak, step, elapsed_s / budget_s)
            loss, norm = trainer.step(batch, rate)
            step += 1
            tokens += arguments.tokens
            asked = time.monotonic()
            try:
                batch = DeviceBatch.of(source.take(), device)
            except RuntimeError:
                save("latest")  # what was trained so far is worth going on from
                raise
            waited_s += time.monotonic() - asked
            if step % LOG_EVERY_STEPS == 0 or step <= 3:
                note(
                    {
                        "step": step,
                        "tokens": tokens,
                        "elapsed_s": round(time.monotonic() - begin, 1),
                        "loss": round(loss.item(), 4),
                        "gradient_norm": round(norm.item(), 3),
                        "learning_rate": round(rate, 7),
                        "waited_for_data_s": round(waited_s, 1),
                    }
                )
            if time.monotonic() - saved > SAVE_EVERY_S:
                saved = time.monotonic()
                save("latest")
        source.close()
        elapsed_s = time.monotonic() - begin
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        note(
            {
                "steps": step,
                "tokens": tokens,
                "elapsed_s": round(elapsed_s, 1),
                "memory_gib": round(peak / 2**30, 1),
            }
        )
    save("checkpoint")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoint/ and training_log.jsonl"
    )
    parser.add_argument("--tekken", type=Path, default=Path("src/sparkstral/demo/checkpoint/tekken.json"))
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="training time; the learning rate ends at 0 then"
    )
    parser.add_argument("--peak", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--tokens", type=int, default=49_152, help="tokens in a step")
    parser.add_argument(
        "--long-share", type=float, default=0.2, help="share of the tokens in pass-key documents"
    )
    parser.add_argument(
        "--long-weight", type=float, default=6.0, help="weight of a pass key's tokens in the loss"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=13, help="processes that make data")
    parser.add_argument("--start", type=Path, default=None, help="checkpoint folder to go on from")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


if __name__ == "__main__":
    run(parse())
