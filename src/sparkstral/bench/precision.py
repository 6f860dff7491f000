"""What a cheaper number format changes, measured on a checkpoint: loss, KL and top-1 agreement against the stored form.

    python -m sparkstral.bench.precision FOLDER --json OUT.json [--setting NAME ...] [--lengths 1000,8000] [--text FILE]

Owns the texts and what is said of each setting; teacher owns the pass, settings the names. Full-vocabulary KL, in
process, with the reference's arithmetic: what the settings do to the model, apart from what kernels do (`verify` holds
those to it).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sparkstral.bench.environment import describe_run, write_report
from sparkstral.bench.loss_text import BOS, ScoredText, score, texts_for
from sparkstral.bench.plot import distribution_svg
from sparkstral.bench.settings import LEFT_OUT, SETTINGS
from sparkstral.bench.teacher import Positions, TeacherForced
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.checkpoint.load import load
from sparkstral.checkpoint.stream import LoadProgress
from sparkstral.demo import Split, passkey
from sparkstral.errors import ConfigError, SparkstralError
from sparkstral.model.config import ModelConfig

DEFAULT_LENGTHS = (1000, 4000)
NUM_WORST, CONTEXT_TOKENS = 10, 12
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class NamedText:
    name: str
    text: ScoredText


def draw_texts(
    folder: Path, config: ModelConfig, tokenizer: ChatTokenizer, lengths: Sequence[int], files: Sequence[Path]
) -> list[NamedText]:
    """The checkpoint's own short texts, one text for each length, and what the user gives. Raises ConfigError for a
    length that the model does not have, or a file that cannot be read."""
    found = [NamedText("short", text) for text in texts_for(folder, config.vocab_size)]
    for length in lengths:
        # A pass key in filler, with its question and answer: in the loss, the answer counts.
        text = score(passkey(random.Random(length), Split.HELD_OUT, length), tokenizer)
        found.append(NamedText(f"{length} tokens", _fitting(f"--lengths {length}", text, config)))
    for file in files:
        try:
            token_ids = (BOS, *tokenizer.encode(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--text: {file} cannot be read: {error}.") from error
        text = ScoredText(token_ids, tuple(range(1, len(token_ids))))
        found.append(NamedText(file.name, _fitting(f"--text {file}", text, config)))
    return found


def _fitting(what: str, text: ScoredText, config: ModelConfig) -> ScoredText:
    if not 1 < len(text.token_ids) <= config.max_position_embeddings:
        raise ConfigError(
            f"{what} is a text of {len(text.token_ids):,} tokens; the model has positions for "
            f"{config.max_position_embeddings:,}, and one token has no next one. Give another."
        )
    return text


def summarize(
    first: Positions, other: Positions, texts: Sequence[NamedText], tokenizer: ChatTokenizer
) -> dict[str, Any]:
    """One setting beside the first: of all positions, of each group of texts, and the worst ones."""
    groups = [(named.name, at) for named in texts for at in range(1, len(named.text.token_ids))]
    counted = [at in counted for named in texts for counted in (set(named.text.counted),)
               for at in range(1, len(named.text.token_ids))]  # fmt: skip
    names = list(dict.fromkeys(named.name for named in texts))
    is_counted = torch.tensor(counted)
    rows = []
    for name in names:
        mask = torch.tensor([group == name for group, _ in groups])
        rows.append({"text": name, **_figures(first, other, mask, mask & is_counted)})
    everything = torch.ones(len(groups), dtype=torch.bool)
    return {
        **_figures(first, other, everything, is_counted),
        "texts": rows,
        "worst": [_position(int(at), first, other, texts, tokenizer) for at in other.divergence.topk(
            min(NUM_WORST, len(groups))).indices],
    }  # fmt: skip


def _figures(first: Positions, other: Positions, mask: torch.Tensor, counted: torch.Tensor) -> dict[str, Any]:
    divergence = other.divergence[mask].double()
    return {
        "num_positions": int(mask.sum()),
        "num_counted": int(counted.sum()),
        "loss_first": float(first.loss[counted].double().mean()),
        "loss": float(other.loss[counted].double().mean()),
        "kl_mean": float(divergence.mean()),
        "kl_quantiles": {str(q): float(divergence.quantile(q)) for q in QUANTILES},
        "kl_max": float(divergence.max()),
        "top1_agreement": float(other.agrees[mask].double().mean()),
    }


def _position(
    at: int, first: Positions, other: Positions, texts: Sequence[NamedText], tokenizer: ChatTokenizer
) -> dict[str, Any]:
    """Where it is, what stood before, and what each setting finds likeliest there."""
    left = at
    for named in texts:
        if left < len(named.text.token_ids) - 1:
            break
        left -= len(named.text.token_ids) - 1
    ids = named.text.token_ids
    return {
        "text": named.name,
        "position": left + 1,
        "kl": float(other.divergence[at]),
        "before": tokenizer.decode(list(ids[max(0, left + 1 - CONTEXT_TOKENS) : left + 1])),
        "token": tokenizer.decode([ids[left + 1]]),
        "likeliest_first": tokenizer.decode([int(first.likeliest[at])]),
        "likeliest": tokenizer.decode([int(other.likeliest[at])]),
    }


def measure(
    folder: Path, names: Sequence[str], lengths: Sequence[int], files: Sequence[Path], device: torch.device,
    report: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Fill `report`; the first of `names` is what the others are compared with. Raises CheckpointError, ConfigError."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    tokenizer = ChatTokenizer.load(folder)

    def show(progress: LoadProgress) -> None:
        print(f"{progress.bytes_done >> 20}/{progress.bytes_total >> 20} MiB read", flush=True)

    config, weights = load(folder, device, show)
    texts = draw_texts(folder, config, tokenizer, lengths, files)

    def on_layer(done: int, total: int) -> None:
        print(f"{done}/{total} layers, {len(names)} settings", flush=True)

    model = TeacherForced(config, weights, device, dtype, on_layer)
    results = dict(zip(names, model.run([t.text for t in texts], [SETTINGS[name] for name in names]), strict=True))
    first = results[names[0]]
    report |= {
        "checkpoint": folder.name,
        "compared_with": names[0],
        "left_out": LEFT_OUT,
        "rows": [
            {"setting": name, "verdict": "ok", "faults": [], **summarize(first, found, texts, tokenizer)}
            for name, found in results.items()
            if name != names[0]
        ],
    }
    for row in report["rows"]:
        if not all(isinstance(row[name], float) and abs(row[name]) < float("inf") for name in ("loss", "kl_mean")):
            row["verdict"], row["faults"] = "failed", ["a loss is not finite"]
    curves = {name: found.divergence.tolist() for name, found in results.items() if name != names[0]}
    report["plot_svg"] = distribution_svg(f"KL of each position from {names[0]}", "nats", curves)
    report["verdict"] = "failed" if any(row["verdict"] == "failed" for row in report["rows"]) else "ok"
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="the folder of a checkpoint")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="others are against the first")
    parser.add_argument("--length", action="append", type=int, default=[], help="of a text with a pass key; may repeat")
    parser.add_argument("--text", action="append", type=Path, default=[], help="a text file; may repeat")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    arguments = parser.parse_args()
    names = arguments.setting or list(SETTINGS)
    has_gpu = arguments.device != "cpu" and torch.cuda.is_available()
    report = describe_run("eval precision")
    try:
        if arguments.device == "cuda" and not has_gpu:
            raise ConfigError("--device cuda: this PyTorch sees no GPU. Use --device cpu.")
        device = torch.device("cuda" if has_gpu else "cpu")
        measure(arguments.model, names, arguments.length or DEFAULT_LENGTHS, arguments.text, device, report)
    except SparkstralError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    write_report(arguments.json, report)
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
