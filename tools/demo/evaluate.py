"""Held-out skills of a demo checkpoint, by greedy generation with transformers on the weights as shipped.

Owns the batching of turns and the table; answers are judged by the demo data program. Every assistant turn of
a conversation is generated with the right turns before it, and a conversation passes when all its turns do.
No grammar is in force here, so tool_choice and schema items show what the model does unaided.

    python -m tools.demo.evaluate src/sparkstral/demo/checkpoint --items 100
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Mistral4ForCausalLM

from sparkstral import demo
from tools.demo import native_layout
from tools.demo.export import computing_dtype, model_of
from tools.demo.rendering import EOS, PAD, Renderer

ARGS, TOOL_CALLS, BEGIN_THINK, END_THINK = 32, 9, 34, 35
MOST_PROMPT_TOKENS = 131_072  # padded tokens of a batch
MOST_ROWS = 512
ROOM_TOKENS = 24  # what an answer may be longer than the right one


@dataclass(slots=True)
class Turn:
    """One assistant turn to generate: prompt and right ids, and the number of its item."""

    item: int
    judge: Any  # EvalItem
    turn: Any  # EvalTurn
    prompt: list[int]
    expected: list[int]
    answer: list[int] | None = None


def answer_message(renderer: Renderer, token_ids: Sequence[int]) -> dict[str, Any]:
    """Generated ids as an OpenAI-form assistant message: split at the control ids, as a server does."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    field = "content"
    for token_id in [*token_ids, EOS]:
        if token_id == EOS:
            break
        if token_id == BEGIN_THINK:
            field = "reasoning"
        elif token_id == END_THINK:
            field = "content"
        elif token_id == TOOL_CALLS:
            message["tool_calls"].append({"name": [], "arguments": []})
            field = "name"
        elif token_id == ARGS and message["tool_calls"]:
            field = "arguments"
        elif field in ("name", "arguments"):
            message["tool_calls"][-1][field].append(token_id)
        else:
            message[field] = [*message[field], token_id]
    for key in ("content", "reasoning"):
        message[key] = renderer.text(list(message[key]))
    message["tool_calls"] = [
        {"function": {key: renderer.text(ids) for key, ids in call.items()}} for call in message["tool_calls"]
    ]
    return message


def generate(model: Mistral4ForCausalLM, turns: list[Turn], device: torch.device) -> None:
    """Fill in the answers of the turns; where tool_choice is none, without the token that begins a call."""
    for forbids_calls in (False, True):
        chosen = [turn for turn in turns if (turn.judge.conversation.tool_choice == "none") == forbids_calls]
        _generate(model, chosen, device, forbids_calls)


@torch.no_grad()
def _generate(
    model: Mistral4ForCausalLM, turns: list[Turn], device: torch.device, forbids_calls: bool
) -> None:
    """In batches of similar length, padded on the left."""
    waiting = sorted(turns, key=lambda turn: len(turn.prompt))
    while waiting:
        longest = len(waiting[-1].prompt)
        batch = waiting[-max(1, min(MOST_ROWS, MOST_PROMPT_TOKENS // longest)) :]
        del waiting[-len(batch) :]
        token_ids = torch.full((len(batch), longest), PAD)
        mask = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, turn in enumerate(batch):
            token_ids[row, longest - len(turn.prompt) :] = torch.tensor(turn.prompt)
            mask[row, longest - len(turn.prompt) :] = 1
        room = max(len(turn.expected) for turn in batch) + ROOM_TOKENS
        output: Tensor = model.generate(
            input_ids=token_ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=room,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=PAD,
            suppress_tokens=[TOOL_CALLS] if forbids_calls else None,
        )
        for turn, row_ids in zip(batch, output[:, longest:].tolist(), strict=True):
            turn.answer = row_ids


def held_out_turns(renderer: Renderer, items: int, seed: int) -> list[Turn]:
    """All turns of `items` held-out conversations of each skill; pass keys by length."""
    turns = []
    held_out = [item for skill in demo.SKILLS for item in demo.eval_items(skill.name, items, seed)]
    for number, item in enumerate(held_out):
        rendered = renderer.render(item.conversation)
        for (begin, end), turn in zip(rendered.spans, item.turns, strict=True):
            turns.append(Turn(number, item, turn, rendered.token_ids[:begin], rendered.token_ids[begin:end]))
    return turns


def report(renderer: Renderer, turns: list[Turn], failures_shown: int) -> dict[str, dict[str, Any]]:
    """Print failures and the table; returns {skill: {bar, items, passed, labels}}."""
    passed: dict[tuple[str, str], dict[int, bool]] = defaultdict(dict)
    shown: dict[str, int] = defaultdict(int)
    for turn in turns:
        item = turn.judge
        why = item.wrong(turn.turn, answer_message(renderer, turn.answer or []))
        results = passed[item.skill, item.label]
        results[turn.item] = results.get(turn.item, True) and why is None
        if why is not None and shown[item.skill] < failures_shown:
            shown[item.skill] += 1
            print(f"  {item.skill}, {item.label} | …{renderer.text(turn.prompt)[-200:]!r} | {why[:400]}")
    table: dict[str, dict[str, Any]] = {}
    for skill in demo.SKILLS:
        labels = {label: results for (name, label), results in passed.items() if name == skill.name}
        items = sum(len(results) for results in labels.values())
        if not items:
            continue
        right = sum(sum(results.values()) for results in labels.values())
        below = "" if right >= skill.bar * items else "  BELOW"
        by_label = ", ".join(
            f"{label} {sum(r.values())}/{len(r)}" for label, r in sorted(labels.items()) if label
        )
        share = f"{right:5d} / {items:5d} {100 * right / items:6.1f} %, bar {100 * skill.bar:.0f}{below}"
        print(f"{skill.name:15s} {share}  {by_label}")
        table[skill.name] = {
            "bar": skill.bar,
            "items": items,
            "passed": right,
            "labels": {label: {"items": len(r), "passed": sum(r.values())} for label, r in labels.items()},
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--items", type=int, default=100, help="conversations of each skill")
    parser.add_argument("--seed", type=int, default=20_000)
    parser.add_argument("--failures", type=int, default=2, help="failures to print for each skill")
    parser.add_argument("--json", type=Path, default=None, help="where to write the table")
    arguments = parser.parse_args()
    begin = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    renderer = Renderer(arguments.checkpoint / native_layout.TEKKEN_FILE)
    model = model_of(native_layout.read(arguments.checkpoint), device, computing_dtype(device))
    turns = held_out_turns(renderer, arguments.items, arguments.seed)
    generate(model, turns, device)
    table = report(renderer, turns, arguments.failures)
    print(f"{len(turns)} turns in {time.monotonic() - begin:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
