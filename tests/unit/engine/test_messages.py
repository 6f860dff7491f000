"""The line's messages come out as they went in."""

from __future__ import annotations

import msgspec
import pytest

from sparkstral.engine.messages import (
    Abort,
    FromEngine,
    Outputs,
    Ready,
    ShrinkCaches,
    Shutdown,
    StatusChanged,
    Submit,
    ToEngine,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from sparkstral.types import (
    EngineInfo,
    EnginePhase,
    EngineStats,
    EngineStatus,
    Failure,
    FinishReason,
    GenerationRequest,
    GrammarSpec,
    MemoryLedger,
    MemoryLine,
    SamplingParams,
    TokenOutput,
)

SAMPLING = SamplingParams(
    max_tokens=5,
    temperature=0.7,
    stop_token_ids=(2, 5),
    top_p=0.9,
    top_k=4,
    min_p=0.1,
    seed=2**63,
    banned_token_ids=(9, 32),
)
STATS = EngineStats(step=7, num_running=1, num_waiting=2, num_free_blocks=3, num_cached_blocks=4)


@pytest.mark.parametrize(
    "message",
    [
        Submit(GenerationRequest("r", (1, 2, 131_071), SAMPLING, GrammarSpec('start: "é"'), cache_salt="s")),
        Submit(GenerationRequest("r", (1,), SamplingParams(max_tokens=1, temperature=0, stop_token_ids=()))),
        Abort("r"),
        ShrinkCaches(),
        Shutdown(),
    ],
)
def test_messages_to_the_engine_round_trip(message: ToEngine):
    assert decode_to_engine(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        StatusChanged(EngineStatus(EnginePhase.LOADING, 0.5, "reading")),
        Ready(EngineInfo(16_384, 64, 100, "cpu", "float32")),
        Ready(EngineInfo(9, 4, 2, "cpu", "float32", MemoryLedger((MemoryLine("KV pool", 5, None),), 5, 7, -1))),
        Outputs((), STATS),
        Outputs(
            (
                TokenOutput("a", (1, 2), num_prompt_tokens=9, num_cached_tokens=8),
                TokenOutput("b", (), finish_reason=FinishReason.LENGTH),
                TokenOutput("c", (), failure=Failure("numerics", "not finite")),
            ),
            STATS,
        ),
    ],
)
def test_messages_from_the_engine_round_trip(message: FromEngine):
    decoded = decode_from_engine(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


def test_what_is_no_message_is_refused():
    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(b"\xc1")
    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(encode(Outputs((), STATS)))
    with pytest.raises(msgspec.DecodeError):
        decode_from_engine(encode(Shutdown()))
