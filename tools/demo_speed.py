"""How fast a served demo is: time to the first token and tokens a second, alone and with eight clients.

Usage: demo_speed.py [--url http://127.0.0.1:8002] [--out docs/performance/NAME.json]
Measured from the client's side of HTTP, with prompts that no cache has seen; medians of five runs. The demo's answers
are short, so decoding is timed on answers that a JSON schema makes long: the grammar's cost is in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sparkstral.evals.endpoint import Endpoint

SCHEMA_VERSION = 1
NUM_RUNS = 5


LONG_ANSWER = {
    "type": "json_schema",
    "json_schema": {
        "name": "numbers",
        "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 60, "maxItems": 60},
    },
}


async def stream_once(endpoint: Endpoint, model: str, prompt: str, **more: Any) -> dict[str, float]:
    """One counted answer: ttft_s, decode tokens a second after the first token, prompt tokens."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 400,
        "stream_options": {"include_usage": True},
        **more,
    }
    started = time.perf_counter()
    first = last = 0.0
    usage: dict[str, Any] = {}
    async with aclosing(endpoint.stream(body)) as chunks:
        async for chunk in chunks:
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                last = time.perf_counter()
                first = first or last
            usage = chunk.get("usage") or usage
    # The closing </s> is counted by usage and comes with no text, so intervals are two fewer than tokens.
    return {
        "ttft_s": first - started,
        "decode_tok_s": (usage["completion_tokens"] - 2) / (last - first),
        "completion_tokens": usage["completion_tokens"],
        "prompt_tokens": usage["prompt_tokens"],
        "e2e_s": time.perf_counter() - started,
    }


def numbers_prompt(rng: random.Random) -> str:
    """A request that the schema LONG_ANSWER answers at length."""
    return f"Write the numbers {', '.join(str(rng.randrange(1000)) for _ in range(6))} as a JSON list."


def long_prompt(rng: random.Random) -> str:
    """About 200 tokens of words."""
    words = " ".join(rng.choice(("harbour", "letter", "winter", "silver", "window")) for _ in range(60))
    return f"{words}\n\nRepeat exactly: blue river stone lamp green blue"


async def measure(url: str) -> dict[str, Any]:
    endpoint = Endpoint(url)
    model = await endpoint.model_name()
    rng = random.Random(time.time_ns())
    await stream_once(endpoint, model, long_prompt(rng))
    long = {"response_format": LONG_ANSWER}
    alone = [await stream_once(endpoint, model, numbers_prompt(rng), **long) for _ in range(NUM_RUNS)]
    first = [await stream_once(endpoint, model, long_prompt(rng)) for _ in range(NUM_RUNS)]
    together = []
    for _ in range(NUM_RUNS):
        started = time.perf_counter()
        runs = await asyncio.gather(*(stream_once(endpoint, model, numbers_prompt(rng), **long) for _ in range(8)))
        together.append(sum(run["completion_tokens"] for run in runs) / (time.perf_counter() - started))
    await endpoint.aclose()
    return {
        "ttft_s": statistics.median(run["ttft_s"] for run in first),
        "ttft_prompt_tokens": statistics.median(run["prompt_tokens"] for run in first),
        "decode_1_client_tok_s": statistics.median(run["decode_tok_s"] for run in alone),
        "total_8_clients_tok_s": statistics.median(together),
        "runs": {"alone": alone, "first": first, "together_tok_s": together},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8002")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.url))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "schema_version": SCHEMA_VERSION,
        "what": "demo model served on a CPU",
        "command": " ".join(["python", *sys.argv]),
        "commit": commit,
        "device": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "versions": {name: version(name) for name in ("torch", "sparkstral")} | {"python": platform.python_version()},
        **result,
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(json.dumps({key: value for key, value in document.items() if key != "runs"}, indent=1))


if __name__ == "__main__":
    main()
