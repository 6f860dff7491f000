"""What crosses the line between a client and its engine, and how it is written.

Owns the messages and their encoding (msgpack); the dataclasses of types.py are their content. Must not know
sockets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec.json
from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from sparkstral.config import EngineConfig
from sparkstral.types import EngineInfo, EngineStats, EngineStatus, GenerationRequest, TokenOutput

STOPPED = "The engine was stopped."  # the reason of an end that was asked for


class Message(Struct, frozen=True, tag=True):
    """Base of all; the tag on the wire is the class' name."""


class Setup(Message, frozen=True):
    """What an engine process is born with."""

    config: EngineConfig
    to_engine_address: str  # where the child connects to hear
    from_engine_address: str  # and to speak
    log_style: Literal["text", "json"]
    log_level: str


class Submit(Message, frozen=True):
    request: GenerationRequest


class Abort(Message, frozen=True):
    request_id: str


class ShrinkCaches(Message, frozen=True):
    """Memory is short: give back what can be computed again."""


class Shutdown(Message, frozen=True):
    """Leave the loop; what still runs is not finished."""


class StatusChanged(Message, frozen=True):
    """A phase begins, or makes progress. After DEAD nothing follows."""

    status: EngineStatus


class Ready(Message, frozen=True):
    """One real token has been generated; requests are welcome."""

    info: EngineInfo


class Outputs(Message, frozen=True):
    """What one step gave, and a sign of life."""

    outputs: tuple[TokenOutput, ...]
    stats: EngineStats


ToEngine = Submit | Abort | ShrinkCaches | Shutdown
FromEngine = StatusChanged | Ready | Outputs

_encoder = Encoder()
_to_engine_decoder = Decoder(ToEngine)
_from_engine_decoder = Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises `msgspec.DecodeError` (or its ValidationError) for what is no message to an engine."""
    return _to_engine_decoder.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Raises `msgspec.DecodeError` (or its ValidationError) for what is no message from an engine."""
    return _from_engine_decoder.decode(data)


def encode_setup(setup: Setup) -> str:
    return msgspec.json.encode(setup, enc_hook=str).decode()


def decode_setup(text: str) -> Setup:
    def to_path(kind: type, value: Any) -> Any:
        return kind(value) if kind is Path else value

    return msgspec.json.decode(text, type=Setup, dec_hook=to_path)
