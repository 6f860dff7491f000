"""Whole engines on a tiny model, in a thread and in a process: the same tokens, the same ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkstral.checkpoint.load import load
from sparkstral.config import EngineConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.inproc import InprocEngineClient
from sparkstral.engine.process import ProcessEngineClient
from sparkstral.errors import ConfigError, NotReadyError
from sparkstral.model.config import EOS_TOKEN_ID
from sparkstral.model.mistral4 import Mistral4
from sparkstral.runner.forward_batch import build_forward_batch
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.types import (
    EnginePhase,
    FinishReason,
    GenerationRequest,
    GrammarSpec,
    SamplingParams,
    ScheduledRequest,
    TokenOutput,
)
from tests.support.tiny_engine import NUM_SPECIAL_TOKENS, VOCAB_SIZE, tiny_config

MakeClient = Callable[[EngineConfig], EngineClient]
both_kinds = pytest.mark.parametrize("make_client", [InprocEngineClient, ProcessEngineClient])
GREEDY = SamplingParams(max_tokens=12, temperature=0, stop_token_ids=())


@asynccontextmanager
async def running(make_client: MakeClient, config: EngineConfig) -> AsyncIterator[EngineClient]:
    client = make_client(config)
    await client.start()
    try:
        await client.wait_until_ready()
        yield client
    finally:
        await client.stop()


async def generate(client: EngineClient, request: GenerationRequest) -> tuple[list[int], TokenOutput]:
    """The token ids and the last output."""
    outputs = [output async for output in client.generate(request)]
    assert [output.is_last for output in outputs] == [False] * (len(outputs) - 1) + [True]
    return [token for output in outputs for token in output.new_token_ids], outputs[-1]


def requests(count: int, params: SamplingParams = GREEDY) -> list[GenerationRequest]:
    """Prompts that begin alike and go on differently, of 5 to 5 + 3 * count tokens."""
    return [
        GenerationRequest(f"r{i}", (1, 3, 70, *((50 + i * 7 + j) % VOCAB_SIZE for j in range(2 + 3 * i))), params)
        for i in range(count)
    ]


def reference_continuation(folder: Path, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    """Greedy, with the model alone: the whole context in one pass for each token."""
    config, weights = load(folder)
    cpu = torch.device("cpu")
    model = Mistral4(config, weights, cpu, torch.float32)
    context = list(prompt)
    for _ in range(num_tokens):
        pool = allocate_latent_pool(config.num_hidden_layers, 2, 512, cpu, torch.float32)
        row = ScheduledRequest("r", tuple(context), 0, (1,), True)
        context.append(int(model.forward(build_forward_batch([row], 512, cpu), pool).argmax()))
    return context[len(prompt) :]


@both_kinds
def test_eight_at_once_get_what_each_gets_from_the_model_alone(make_client: MakeClient, tiny_model: Path):
    async def main() -> None:
        async with running(make_client, tiny_config(tiny_model)) as client:
            results = await asyncio.gather(*(generate(client, request) for request in requests(8)))
            for request, (token_ids, last) in zip(requests(8), results, strict=True):
                assert token_ids == reference_continuation(tiny_model, request.prompt_token_ids, 12)
                assert last.finish_reason is FinishReason.LENGTH
                assert last.num_prompt_tokens == len(request.prompt_token_ids)
            assert client.info.max_model_len == 512

    asyncio.run(main())


def test_the_twins_draw_the_same_tokens(tiny_model: Path):
    seeded = replace(GREEDY, temperature=1.2, top_p=0.95, seed=5)
    unseeded = replace(GREEDY, temperature=1.2)

    async def answers(make_client: MakeClient) -> list[list[int]]:
        async with running(make_client, tiny_config(tiny_model)) as client:
            first = await asyncio.gather(*(generate(client, request) for request in requests(4, seeded)))
            second = await asyncio.gather(*(generate(client, request) for request in requests(4, unseeded)))
            return [token_ids for token_ids, _ in (*first, *second)]

    in_thread = asyncio.run(answers(InprocEngineClient))
    assert in_thread == asyncio.run(answers(ProcessEngineClient))
    assert in_thread[:4] != in_thread[4:]


def test_a_tight_pool_changes_no_token(tiny_model: Path):
    params = replace(GREEDY, max_tokens=60)
    tight = replace(tiny_config(tiny_model), max_model_len=128, kv_memory_bytes=12 * 16 * 2_560)

    async def answers(config: EngineConfig) -> tuple[list[list[int]], int]:
        async with running(InprocEngineClient, config) as client:
            results = await asyncio.gather(*(generate(client, request) for request in requests(6, params)))
            return [token_ids for token_ids, _ in results], client.stats().num_preemptions

    uninterrupted, none = asyncio.run(answers(tiny_config(tiny_model)))
    interrupted, some = asyncio.run(answers(tight))
    assert (none, some > 0) == (0, True)
    assert interrupted == uninterrupted


def test_a_conversation_that_goes_on_finds_its_prefix_in_the_cache(tiny_model: Path):
    async def main() -> None:
        async with running(InprocEngineClient, tiny_config(tiny_model)) as client:
            prompt = tuple(50 + i for i in range(40))
            answer, last = await generate(client, GenerationRequest("turn 1", prompt, GREEDY))
            assert last.num_cached_tokens == 0
            longer = (*prompt, *answer, 60, 61, 62)
            token_ids, last = await generate(client, GenerationRequest("turn 2", longer, GREEDY))
            assert last.num_cached_tokens == 48  # three full blocks of 16: the answer's tokens too
            assert token_ids == reference_continuation(tiny_model, longer, 12)
            _, last = await generate(client, GenerationRequest("other", longer, GREEDY, cache_salt="other"))
            assert last.num_cached_tokens == 0

    asyncio.run(main())


@both_kinds
def test_who_leaves_gives_its_blocks_back(make_client: MakeClient, tiny_model: Path):
    async def main() -> None:
        async with running(make_client, tiny_config(tiny_model)) as client:
            num_free_blocks = client.info.num_usable_blocks
            endless = replace(GREEDY, max_tokens=450)
            async with aclosing(client.generate(GenerationRequest("leaver", (1, 2), endless))) as outputs:
                await anext(outputs)
            cancelled = asyncio.create_task(generate(client, GenerationRequest("cancelled", (1, 3), endless)))
            await generate(client, GenerationRequest("other", (1, 4), GREEDY))
            cancelled.cancel()
            await asyncio.wait([cancelled])
            # Whatever comes after the aborts on the line has seen them.
            await generate(client, GenerationRequest("after", (1, 5), GREEDY))
            stats = client.stats()
            assert (stats.num_running, stats.num_waiting) == (0, 0)
            assert stats.num_free_blocks == num_free_blocks

    asyncio.run(main())


@both_kinds
def test_a_grammar_crosses_the_line(make_client: MakeClient, tiny_model: Path):
    async def main() -> None:
        async with running(make_client, tiny_config(tiny_model)) as client:
            params = SamplingParams(max_tokens=40, temperature=1.0, stop_token_ids=(EOS_TOKEN_ID,), seed=1)
            lark = 'start: <[9]> "get_time" <[32]> %json {"enum": ["Oslo", "Lima"]}'
            request = GenerationRequest("call", (1, 2), params, GrammarSpec(lark))
            token_ids, last = await generate(client, request)
            assert last.finish_reason is FinishReason.STOP
            assert (token_ids[0], token_ids[9], token_ids[-1]) == (9, 32, EOS_TOKEN_ID)
            text = bytes(t - NUM_SPECIAL_TOKENS for t in token_ids if t >= NUM_SPECIAL_TOKENS).decode()
            assert text in ('get_time"Oslo"', 'get_time"Lima"')

            wrong = GenerationRequest("wrong", (1, 2), params, GrammarSpec('start: %json {"enum": []}'))
            _, last = await generate(client, wrong)
            assert last.failure is not None
            assert last.failure.code == "grammar"

    asyncio.run(main())


@both_kinds
def test_an_engine_that_cannot_load_says_why(make_client: MakeClient, tmp_path: Path):
    async def main() -> None:
        client = make_client(tiny_config(tmp_path))
        await client.start()
        with pytest.raises(NotReadyError, match="is empty"):
            await client.wait_until_ready()
        assert client.status().phase is EnginePhase.DEAD
        await client.stop()
        assert "is empty" in client.status().detail

    asyncio.run(main())


@both_kinds
def test_settings_that_the_model_cannot_have_are_a_usage_error(make_client: MakeClient, tiny_model: Path):
    async def main() -> None:
        client = make_client(replace(tiny_config(tiny_model), max_model_len=2_000_000))
        await client.start()
        with pytest.raises(ConfigError, match="--max-model-len is 2,000,000"):
            await client.wait_until_ready()
        await client.stop()

    asyncio.run(main())


@both_kinds
def test_stopping_ends_what_runs_and_may_come_twice_or_early(make_client: MakeClient, tiny_model: Path):
    async def main() -> None:
        endless = GenerationRequest("r", (1, 2), replace(GREEDY, max_tokens=500))
        async with running(make_client, tiny_config(tiny_model)) as client:
            runs = asyncio.create_task(generate(client, endless))
            await asyncio.sleep(0)
            await client.stop()
            _, last = await runs
            assert last.failure is not None
            assert last.failure.code == "engine_dead"
            assert "stopped" in last.failure.message
            with pytest.raises(NotReadyError, match="stopped"):
                await generate(client, endless)

        early = make_client(tiny_config(tiny_model))
        await early.start()
        await early.stop()
        assert early.status().phase is EnginePhase.DEAD
        never_started = make_client(tiny_config(tiny_model))
        await never_started.stop()

    asyncio.run(main())
