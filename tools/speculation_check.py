"""Whether speculation changes an answer, and what it does to speed: the demo's prompts, with and without it.

Usage: python -m tools.speculation_check [--num-prompts 500] [--out FILE]
Every prompt is a turn of the demo's held-out conversations (all skills: tools, JSON schemas, long contexts), answered
greedily by two engines in this process, one with drafts and one without: all in waves of 1 to 16 at once, and some of
each skill one by one. Exit code 1 if any answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sparkstral.api.openai_chat.request import to_chat_request
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.chat.grammar import banned_token_ids, grammar_for
from sparkstral.chat.render import render
from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.config import EngineConfig
from sparkstral.demo import SKILLS
from sparkstral.demo.location import DEMO_CHECKPOINT
from sparkstral.engine.build import build_engine
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import FromEngine, Outputs, Shutdown, Submit
from sparkstral.evals.demo import draw_items, request_body
from sparkstral.structured.check import GrammarCheck
from sparkstral.types import EngineStats, GenerationRequest, SamplingParams

SCHEMA_VERSION = 1
WAVES = tuple(range(1, 17))  # requests at once
MAX_ANSWER_TOKENS = 200
KV_BYTES = 256 << 20  # 34,000 tokens


def demo_requests(num_prompts: int, seed: int, max_prompt_tokens: int) -> list[tuple[str, GenerationRequest]]:
    """(skill, request) of as many last turns, the skills in turn; prompts longer than that are left out."""
    tokenizer = ChatTokenizer.load(DEMO_CHECKPOINT)
    each = -(-num_prompts * 5 // (4 * len(SKILLS)))  # some are too long
    by_skill: dict[str, list[GenerationRequest]] = {skill.name: [] for skill in SKILLS}
    for item in draw_items(SKILLS, each, -(-each // 6), seed):
        requests = by_skill[item.skill]
        body = request_body("demo", item, item.turns[-1])
        chat = to_chat_request(ChatCompletionRequest.model_validate(body))
        rendered = render(chat, tokenizer)
        if len(rendered.prompt.token_ids) > max_prompt_tokens:
            continue
        params = SamplingParams(
            max_tokens=MAX_ANSWER_TOKENS,
            temperature=0.0,
            stop_token_ids=(Control.EOS.value,),
            banned_token_ids=banned_token_ids(chat),
        )
        grammar = grammar_for(chat, GrammarCheck(), prefilled_think=rendered.prompt.prefilled_think)
        name = f"{item.skill} {len(requests)}"
        requests.append(GenerationRequest(name, rendered.prompt.token_ids, params, grammar))
    turns = [(skill, requests[i]) for i in range(each) for skill, requests in by_skill.items() if i < len(requests)]
    return turns[:num_prompts]


@dataclass
class Engine:
    """One engine of this process, and what its requests were answered."""

    config: EngineConfig
    answers: dict[str, list[int]] = field(default_factory=dict)
    stats: EngineStats = field(default_factory=lambda: EngineStats(0, 0, 0, 0, 0))

    def __post_init__(self) -> None:
        self._inbox = Inbox()
        self._open: set[str] = set()
        self._core, self.info = build_engine(self.config, self._inbox, self._receive, lambda *_: None)

    def _receive(self, message: FromEngine) -> None:
        assert isinstance(message, Outputs)
        self.stats = message.stats
        for output in message.outputs:
            if output.failure is not None:
                raise RuntimeError(f"{output.request_id}: {output.failure.message}")
            self.answers[output.request_id] += output.new_token_ids
            if output.is_last:
                self._open.discard(output.request_id)
        if not self._open:
            self._inbox.put(Shutdown())

    def serve(self, requests: Iterable[GenerationRequest]) -> None:
        """All at once, until all have ended."""
        for request in requests:
            self._open.add(request.request_id)
            self.answers[request.request_id] = []
            self._inbox.put(Submit(request))
        self._core.run()


def waves(requests: Sequence[GenerationRequest], sizes: Sequence[int]) -> Iterator[Sequence[GenerationRequest]]:
    begin = turn = 0
    while begin < len(requests):
        size = sizes[turn % len(sizes)]
        yield requests[begin : begin + size]
        begin, turn = begin + size, turn + 1


def run(engine: Engine, requests: Sequence[GenerationRequest], sizes: Sequence[int], part: str) -> dict[str, Any]:
    """Answers and times; `part` salts the cache, so that none finds what another part left."""
    salted = [replace(request, request_id=f"{part} {request.request_id}", cache_salt=part) for request in requests]
    before = engine.stats
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    for wave in waves(salted, sizes):
        engine.serve(wave)
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    stats, answers = engine.stats, {r.request_id: engine.answers.pop(r.request_id) for r in salted}
    num_drafts = stats.num_drafts - before.num_drafts
    num_accepted = stats.num_accepted_tokens - before.num_accepted_tokens
    return {
        "answers": answers,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "num_steps": stats.step - before.step,
        "num_output_tokens": sum(map(len, answers.values())),
        "num_drafts": num_drafts,
        "num_draft_tokens": stats.num_draft_tokens - before.num_draft_tokens,
        "num_accepted_tokens": num_accepted,
        "accepted_length": 1 + num_accepted / num_drafts if num_drafts else None,
    }


def compare(
    plain: Engine, drafting: Engine, requests: Sequence[GenerationRequest], sizes: Sequence[int], part: str
) -> dict[str, Any]:
    """The same requests without and with drafts -> a document of both, and whose answers differ."""
    without, drafted = (run(engine, requests, sizes, part) for engine in (plain, drafting))
    answers, others = without.pop("answers"), drafted.pop("answers")
    return {
        "at_once": [min(sizes), max(sizes)],
        "num_prompts": len(requests),
        "num_with_a_grammar": sum(request.grammar is not None for request in requests),
        "longest_prompt_tokens": max(len(request.prompt_token_ids) for request in requests),
        "differing": [request_id for request_id in answers if answers[request_id] != others[request_id]],
        "plain": without,
        "speculative": drafted,
        "speedup_wall": without["wall_s"] / drafted["wall_s"],
        "speedup_cpu_time": without["cpu_s"] / drafted["cpu_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO_CHECKPOINT)
    parser.add_argument("--num-prompts", type=int, default=500)
    parser.add_argument("--num-alone", type=int, default=10, help="of each skill, asked one by one")
    parser.add_argument("--max-prompt-tokens", type=int, default=4200, help="longer prompts are left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    config = EngineConfig(
        arguments.model,
        device="cpu",
        max_num_seqs=max(WAVES),
        speculative="prompt-lookup",
        num_threads=arguments.threads,
        kv_memory_bytes=KV_BYTES,
    )
    requests = demo_requests(arguments.num_prompts, arguments.seed, arguments.max_prompt_tokens)
    plain, drafting = Engine(replace(config, speculative="off")), Engine(config)
    for engine in (plain, drafting):
        run(engine, [request for _, request in requests[:4]], (1,), "warm-up")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    parts = {
        "batched": compare(plain, drafting, [request for _, request in requests], WAVES, "batched"),
        **{
            f"alone: {skill.name}": compare(
                plain, drafting, [r for s, r in requests if s == skill.name][: arguments.num_alone], (1,), skill.name
            )
            for skill in SKILLS
        },
    }
    document = {
        "schema_version": SCHEMA_VERSION,
        "what": "prompt-lookup: greedy answers of the demo with and without drafts, on a CPU",
        "command": " ".join(["python", "-m", "tools.speculation_check", *sys.argv[1:]]),
        "commit": commit,
        "device": f"{arguments.threads} threads of {os.cpu_count()} {platform.machine()} cores, shared with other work",
        "load_average": os.getloadavg(),
        "versions": {name: version(name) for name in ("torch", "llguidance")} | {"python": platform.python_version()},
        "parts": parts,
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    sys.exit(1 if any(part["differing"] for part in parts.values()) else 0)


if __name__ == "__main__":
    main()
