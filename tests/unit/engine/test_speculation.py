"""Drafts through the whole step loop: answers are what they are without, whatever a request asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkstral.config import EngineConfig
from sparkstral.engine.build import build_engine
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import Abort, Outputs, Submit
from sparkstral.errors import ConfigError
from sparkstral.types import FinishReason, GenerationRequest, SamplingParams
from tests.support.context_model import VOCAB_SIZE, ContextModel, greedy_continuation
from tests.support.core_bench import Engine, request

DEPTH = 5
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, stop_token_ids=())
WARM = replace(GREEDY, temperature=0.2, seed=5)  # so that many drafts, which are greedy, stand


def answers(engine: Engine, *requests: GenerationRequest) -> dict[str, list[object]]:
    """Tokens, log probabilities and ends."""
    engine.serve(*requests)
    engine.assert_all_blocks_are_free()
    return {
        r.request_id: [
            engine.tokens(r.request_id),
            [p for output in engine.outputs[r.request_id] for p in (*output.prompt_logprobs, *output.logprobs)],
            engine.last(r.request_id).finish_reason,
        ]
        for r in requests
    }


def asking(params: SamplingParams) -> list[GenerationRequest]:
    return [GenerationRequest(f"r{i}", tuple(range(i + 1, i + 5)), params) for i in range(3)]


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        WARM,
        replace(WARM, temperature=1.5, seed=None, top_p=0.9, top_k=50),
        replace(WARM, presence_penalty=0.4, frequency_penalty=0.3),
        replace(GREEDY, repetition_penalty=1.3),
        replace(GREEDY, logit_bias=((17, 3.5), (40, 3.0))),
        replace(GREEDY, num_logprobs=3),
        replace(WARM, num_logprobs=0, num_prompt_logprobs=2),
        replace(GREEDY, banned_token_ids=tuple(range(0, VOCAB_SIZE, 3))),
        replace(GREEDY, stop_token_ids=tuple(range(0, VOCAB_SIZE, 12))),
        replace(GREEDY, stop_token_ids=tuple(range(0, VOCAB_SIZE, 7)), min_tokens=9),
    ],
    ids=[
        "greedy", "sampled", "nucleus", "penalties", "repetition", "bias", "logprobs", "prompt logprobs", "banned",
        "stop", "min tokens",
    ],
)  # fmt: skip
def test_answers_are_those_without_drafts(params: SamplingParams, overlaps: bool):
    drafting = Engine(overlaps=overlaps, depth=DEPTH)
    assert answers(drafting, *asking(params)) == answers(Engine(), *asking(params))
    assert drafting.stats[-1].num_draft_tokens > 0


def test_drafts_that_stand_save_passes():
    drafting, plain = Engine(depth=DEPTH), Engine()
    drafting.serve(request("r", [5, 6, 7], max_tokens=40))
    plain.serve(request("r", [5, 6, 7], max_tokens=40))
    assert len(drafting.model.num_tokens_per_pass) < 0.4 * len(plain.model.num_tokens_per_pass)
    stats = drafting.stats[-1]
    assert stats.num_accepted_tokens > 20
    assert stats.num_draft_steps >= stats.num_accepted_tokens / DEPTH
    assert stats.num_generated_tokens == 40


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_grammar_goes_along_with_the_drafts(overlaps: bool):
    """The proposer guesses on in the alphabet: right to `g`, then the grammar wants something else."""
    lark = 'start: "abcdefg" ("z"|"y") "klmnop"'
    drafting = Engine(overlaps=overlaps, depth=DEPTH)
    requests = [request(f"r{i}", [i + 1], max_tokens=30, grammar=lark, stop=(2,)) for i in range(3)]
    assert answers(drafting, *requests) == answers(Engine(), *requests)
    assert drafting.stats[-1].num_accepted_tokens >= 3 * 8


def test_a_grammar_that_fails_behind_drafts_that_stand_fails_there_alone():
    # After `abc` the grammar is satisfied, and nothing but the stop token, which this request does not have, may come.
    drafting = Engine(depth=DEPTH)
    drafting.serve(request("g", [1], max_tokens=9, grammar='start: "abc"'), request("r", [4, 5], max_tokens=9))
    assert drafting.tokens("g")[:3] == [40 + ord(letter) for letter in "abc"]
    assert drafting.tokens("r") == greedy_continuation([4, 5], 9)


def test_drafts_and_chunks_of_a_prompt_share_a_step():
    drafting = Engine(max_num_batched_tokens=9, depth=DEPTH)
    prompt = list(range(50, 90))

    def arrive(_: Outputs) -> None:
        if len(drafting.outputs.get("r", ())) == 2:
            drafting.on_outputs = lambda _: None
            drafting.put(Submit(request("long", prompt, max_tokens=5)))

    drafting.on_outputs = arrive
    drafting.serve(request("r", [1, 2], max_tokens=60))
    assert drafting.tokens("r") == greedy_continuation([1, 2], 60)
    assert drafting.tokens("long") == greedy_continuation(prompt, 5)
    drafting.assert_all_blocks_are_free()


def test_preempted_and_resumed_with_drafts_equals_uninterrupted():
    drafting = Engine(num_blocks=12, depth=DEPTH)
    requests = [request(f"r{i}", [i + 1, i + 2], max_tokens=22, temperature=0.5) for i in range(3)]
    assert answers(drafting, *requests) == answers(Engine(), *requests)
    assert drafting.stats[-1].num_preemptions > 0


def test_a_prefix_that_others_reuse_holds_no_token_that_fell():
    drafting = Engine(depth=DEPTH)
    drafting.serve(request("first", [3, 1, 4], max_tokens=21))
    said = greedy_continuation([3, 1, 4], 21)
    drafting.serve(request("next turn", [3, 1, 4, *said, 9], max_tokens=12))
    assert drafting.tokens("next turn") == greedy_continuation([3, 1, 4, *said, 9], 12)
    assert drafting.last("next turn").num_cached_tokens >= 20


def test_a_stop_token_among_the_drafts_is_the_last():
    said = greedy_continuation([7, 8], 12)
    drafting = Engine(depth=DEPTH)
    drafting.serve(request("r", [7, 8], max_tokens=30, stop=(said[6],)))
    assert drafting.tokens("r") == said[: said.index(said[6]) + 1]
    assert drafting.last("r").finish_reason is FinishReason.STOP


def test_numbers_that_are_sick_behind_drafts_fail_the_request_when_they_are_reached():
    said = greedy_continuation([7, 8], 12)
    drafting = Engine(model=ContextModel(sick_token=said[6]), depth=DEPTH)
    drafting.serve(request("r", [7, 8], max_tokens=30), request("fine", [9], max_tokens=9))
    assert drafting.tokens("r") == said[:7]
    failure = drafting.last("r").failure
    assert failure is not None
    assert failure.code == "numerics"
    assert drafting.tokens("fine") == greedy_continuation([9], 9)


def test_a_client_that_leaves_while_its_drafts_are_verified_gets_one_end():
    drafting = Engine(depth=DEPTH)

    def leave(_: Outputs) -> None:
        if len(drafting.outputs.get("r", ())) == 3:
            drafting.put(Abort("r"))

    drafting.on_outputs = leave
    drafting.serve(request("r", [1, 2], max_tokens=90), request("s", [4], max_tokens=30))
    assert drafting.tokens("r") == greedy_continuation([1, 2], len(drafting.tokens("r")))
    assert drafting.tokens("s") == greedy_continuation([4], 30)
    drafting.assert_all_blocks_are_free()


def test_a_failed_step_with_drafts_costs_its_own_requests_alone(caplog: pytest.LogCaptureFixture):
    drafting = Engine(depth=DEPTH)

    def fail_once(_: Outputs) -> None:
        if len(drafting.outputs["r"]) == 3:
            drafting.model.error = RuntimeError("a defect")
            drafting.on_outputs = lambda _: None

    drafting.on_outputs = fail_once
    drafting.serve(request("r", [1, 2], max_tokens=40))
    assert drafting.last("r").failure is not None
    drafting.serve(request("later", [7], max_tokens=12))
    assert drafting.tokens("later") == greedy_continuation([7], 12)
    drafting.assert_all_blocks_are_free()


def test_steps_with_drafts_are_not_overlapped_and_others_are():
    overlapped = Engine(overlaps=True, depth=DEPTH)
    overlapped.serve(request("r", [1, 2], max_tokens=40))
    assert overlapped.ahead is not None
    assert overlapped.ahead.num_ahead <= 2  # before the first drafts


def test_a_draft_head_is_refused_before_anything_is_loaded(tmp_path: Path):
    with pytest.raises(ConfigError, match="--speculative prompt-lookup"):
        build_engine(EngineConfig(tmp_path, speculative="eagle"), Inbox(), lambda _: None, lambda *_: None)
