"""Errors that a user can cause or must hear of: what happened, the numbers, and what to do.

Only `api/errors.py` knows which status code each becomes, and only `cli/` which exit code.
"""

from __future__ import annotations


class SparkstralError(Exception):
    """Base of all errors whose message is meant for the user; anything else that escapes is a defect of ours."""


class RequestError(SparkstralError):
    """A request that cannot be served as it is. `param` names the field, as the client spelled it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(RequestError):
    """The prompt and the wanted output do not fit into the context."""

    def __init__(self, message: str, param: str | None, num_prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(message, param)
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len


class OverloadedError(SparkstralError):
    """The queue is full; `retry_after_s` is when it is worth asking again."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReadyError(SparkstralError):
    """The engine is starting, draining or dead; the message says which, and why."""


class CheckpointError(SparkstralError):
    """A checkpoint that cannot be read or does not hold what the model needs; names the file and the remedy."""


class ConfigError(SparkstralError):
    """Flags or settings that do not go together."""


class MemoryPlanError(SparkstralError):
    """What was asked for does not fit into the memory; the message holds the sum and what would fit."""
