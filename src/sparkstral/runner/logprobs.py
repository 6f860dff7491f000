"""Log probabilities of a step: where the device writes them, how they reach the host, and those of prompts.

Owns the rows of kernels/token_logprobs and the pieces in which a prompt's logits are made, for a prompt has more of
them than memory. Must not know requests' texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.token_logprobs import triton_kernel as token_logprobs
from sparkstral.runner.request_state import RequestState
from sparkstral.runner.step_buffers import MAX_IN_FLIGHT
from sparkstral.sampling.logprobs import read_logprobs
from sparkstral.types import ScheduledRequest, TokenLogprob

ROWS_AT_ONCE = 32  # of a prompt's logits, which are 0.5 MB each; what the head's few-row product takes in float32


class LogprobRows:
    """[N, 1 + 2 MAX_TOP] on the device and, for each step in flight, on the host."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.device = token_logprobs.allocate_output(max_rows, device)
        self._hosts = [
            torch.zeros(self.device.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
            for _ in range(MAX_IN_FLIGHT)
        ]

    def fetch(self, turn: int, num_rows: int) -> None:
        """Let the first rows come to the host behind what was launched."""
        self._hosts[turn][:num_rows].copy_(self.device[:num_rows], non_blocking=True)

    def host(self, turn: int) -> NDArray[np.int32]:
        rows: NDArray[np.int32] = self._hosts[turn].numpy()
        return rows


@dataclass(frozen=True, slots=True)
class ExplainedPrompt:
    """A request's tokens that a step explains: those that follow its first scheduled ones, of its prompt."""

    request_id: str
    index: int  # into the step's requests
    next_ids: tuple[int, ...]
    num_top: int

    @classmethod
    def of(cls, index: int, request: ScheduledRequest, state: RequestState | None) -> ExplainedPrompt | None:
        """None if the request wants nothing explained, or has nothing left."""
        if state is None or state.params.num_prompt_logprobs is None:
            return None
        first = request.num_computed_tokens + 1
        next_ids = state.prompt_token_ids[first : first + len(request.token_ids)]
        return cls(request.request_id, index, next_ids, state.params.num_prompt_logprobs) if next_ids else None


class PromptLogprobs:
    """Of steps with up to `max_tokens` tokens. `workspace` holds ROWS_AT_ONCE rows at least."""

    def __init__(
        self,
        max_tokens: int,
        logits: Callable[[Tensor], Tensor],
        workspace: token_logprobs.TokenLogprobsWorkspace,
        kernels: KernelConfigs,
        device: torch.device,
    ) -> None:
        self._rows = LogprobRows(padded(max_tokens), device)
        self._logits = logits
        self._workspace = workspace
        self._kernels = kernels

    def explain(self, hidden: Tensor, prompts: Sequence[ExplainedPrompt], turn: int) -> None:
        """hidden [N, H]: what logits are made of, the prompts' rows one after the other."""
        wanted: NDArray[Any] = np.zeros((2, padded(len(hidden))), dtype=np.int64)
        wanted[1] = -1
        end = 0
        for prompt in prompts:
            begin, end = end, end + len(prompt.next_ids)
            wanted[0, begin:end], wanted[1, begin:end] = prompt.next_ids, prompt.num_top
        next_ids, num_top = torch.from_numpy(wanted).to(hidden.device)
        num_top = num_top.int()
        for begin in range(0, len(hidden), ROWS_AT_ONCE):
            rows = slice(begin, begin + ROWS_AT_ONCE)
            piece = hidden[rows]
            if len(piece) < ROWS_AT_ONCE:  # of the same size, so that there is one variant of all kernels
                piece = F.pad(piece, (0, 0, 0, ROWS_AT_ONCE - len(piece)))
            token_logprobs.token_logprobs(
                self._logits(piece), next_ids[rows], num_top[rows], out=self._rows.device[rows],
                workspace=self._workspace, config=self._kernels.token_logprobs, pdl=self._kernels.pdl,
            )  # fmt: skip
        self._rows.fetch(turn, end)

    def read(self, prompts: Sequence[ExplainedPrompt], turn: int) -> dict[str, tuple[TokenLogprob, ...]]:
        """When the step of `turn` is through."""
        rows = self._rows.host(turn)
        found = {}
        end = 0
        for prompt in prompts:
            begin, end = end, end + len(prompt.next_ids)
            found[prompt.request_id] = tuple(
                read_logprobs(row, token_id, prompt.num_top)
                for row, token_id in zip(rows[begin:end], prompt.next_ids, strict=True)
            )
        return found


def padded(num_rows: int) -> int:
    return -(-num_rows // ROWS_AT_ONCE) * ROWS_AT_ONCE
