"""A whole engine in the test's thread: requests in, and what was said to each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparkstral.config import EngineConfig
from sparkstral.engine import build
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import FromEngine, Outputs, Shutdown, Submit
from sparkstral.types import EngineStats, GenerationRequest, TokenOutput


class Answers:
    """What an engine said to requests."""

    def __init__(self, config: EngineConfig, *turns: Sequence[GenerationRequest]) -> None:
        """One turn after the other; the requests of a turn come at once."""
        self.outputs: dict[str, list[TokenOutput]] = {}
        self.stats = EngineStats(0, 0, 0, 0, 0)
        self._inbox = Inbox()
        self._turns = [list(turn) for turn in turns]
        self._open: set[str] = set()
        core, self.info = build.build_engine(config, self._inbox, self._take, lambda *_: None)
        self._next_turn()
        core.run()

    def _next_turn(self) -> None:
        if not self._turns:
            self._inbox.put(Shutdown())
            return
        for each in self._turns.pop(0):
            self._open.add(each.request_id)
            self._inbox.put(Submit(each))

    def _take(self, message: FromEngine) -> None:
        assert isinstance(message, Outputs)
        self.stats = message.stats
        for output in message.outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
            if output.is_last:
                self._open.remove(output.request_id)
        if message.outputs and not self._open:
            self._next_turn()

    def last(self, request_id: str) -> TokenOutput:
        return self.outputs[request_id][-1]

    def numbers(self, request_id: str) -> torch.Tensor:
        """Of each token its id, its log probability and those of the likeliest."""
        assert all(output.failure is None for output in self.outputs[request_id]), self.last(request_id)
        rows = [
            [float(told.token_id), told.logprob, *(logprob for _, logprob in told.top)]
            for output in self.outputs[request_id]
            for told in output.logprobs
        ]
        return torch.tensor(rows)
