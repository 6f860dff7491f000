"""The fast runner gives what the plain one gives: graphs' batches, chunks, masks, seeds, and steps in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sparkstral.runner.decode_graphs import decode_sizes
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.runner.fast_runner import FastRunner, MemoryGrowth
from sparkstral.runner.model_runner import ModelRunner
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.types import UNSEEN, GrammarSpec, NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from tests.support.context_model import VOCAB_SIZE, ContextModel, greedy_continuation, logits_of, make_pool
from tests.support.core_bench import TOKENIZER
from tests.support.fast_context_model import FastContextModel
from tests.support.images import prompt_of, random_image
from tests.unit.runner.test_model_runner import (
    ALPHABET,
    GRAMMAR,
    GREEDY,
    RANDOM,
    FakeGrammar,
    block_ids,
    make_runner,
    run,
)


def make_fast_runner(model: FastContextModel | None = None, num_blocks: int = 64) -> FastRunner:
    grammars = {GRAMMAR: FakeGrammar()}.__getitem__
    return FastRunner(model or FastContextModel(), make_pool(num_blocks, 4), 3, grammars, VOCAB_SIZE)


PARAMS = {
    "greedy": GREEDY,
    "random": RANDOM,
    "filtered": replace(RANDOM, top_k=40, top_p=0.8, seed=5),
    "min_p": replace(RANDOM, min_p=0.2, seed=None),
    "banned": replace(GREEDY, banned_token_ids=(greedy_continuation([1, 2, 3], 1)[0],)),
    "tiny temperature": replace(GREEDY, temperature=1e-42),
}


@pytest.mark.parametrize("name", PARAMS)
def test_it_says_what_the_plain_runner_says(name: str):
    contexts = {"a": [1, 2, 3], "b": [4], "c": [1, 2, 4]}
    fast = run(make_fast_runner(), {k: list(v) for k, v in contexts.items()}, 5, PARAMS[name])
    assert fast == run(make_runner(), contexts, 5, PARAMS[name])


def test_a_request_draws_the_same_in_any_batch():
    alone = run(make_fast_runner(), {"r": [1, 2, 3]}, 5, RANDOM)["r"]
    others = {"x": [9], "r": [1, 2, 3], "y": [5, 5]}
    assert run(make_fast_runner(), others, 5, RANDOM)["r"] == alone


def test_a_grammar_goes_along_beside_a_free_row():
    runner = make_fast_runner()
    first = (
        ScheduledRequest("g", (1,), 0, block_ids(0), True),
        ScheduledRequest("free", (1, 2), 0, block_ids(1), True),
    )
    new = (NewRequest("g", GREEDY, GRAMMAR, ()), NewRequest("free", GREEDY, None, ()))
    result = runner.execute(SchedulerOutput(1, first, new))
    said = [result.sampled["g"][0]]
    for step in range(2):
        row = ScheduledRequest("g", (said[-1],), 1 + step, block_ids(0), True)
        said += runner.execute(SchedulerOutput(2 + step, (row,))).sampled["g"]
    assert said == list(ALPHABET)
    assert result.sampled["free"] == (int(logits_of([1, 2]).argmax()),)
    last = runner.execute(SchedulerOutput(4, (ScheduledRequest("g", (said[-1],), 3, block_ids(0), True),)))
    assert "too complex" in last.failures["g"].message


def test_a_grammar_that_refuses_what_was_said_before_fails_its_request_alone():
    step = SchedulerOutput(
        1,
        (
            ScheduledRequest("refused", (1,), 0, block_ids(0), True),
            ScheduledRequest("fine", (2,), 0, block_ids(1), True),
        ),
        (NewRequest("refused", GREEDY, GRAMMAR, (99,)), NewRequest("fine", GREEDY, None, ())),
    )
    result = make_fast_runner().execute(step)
    assert "not allowed here" in result.failures["refused"].message
    assert result.sampled == {"fine": (int(logits_of([2]).argmax()),)}


def test_a_sick_row_fails_alone():
    runner = make_fast_runner(FastContextModel(sick_token=7))
    rows = tuple(ScheduledRequest(name, (token,), 0, block_ids(i), True)
                 for i, (name, token) in enumerate((("sick", 7), ("fine", 2))))  # fmt: skip
    result = runner.execute(
        SchedulerOutput(1, rows, (NewRequest("sick", RANDOM, None, ()), NewRequest("fine", GREEDY, None, ())))
    )
    assert result.failures["sick"].code == "numerics"
    assert result.sampled == {"fine": (int(logits_of([2]).argmax()),)}


def test_chunks_decode_rows_and_new_prompts_share_a_pass():
    model = FastContextModel()
    runner = make_fast_runner(model)
    new = tuple(NewRequest(name, GREEDY, None, ()) for name in "ab")
    a, b = [1, 2, 3, 4, 5], [9, 8]
    first = (
        ScheduledRequest("a", tuple(a[:3]), 0, block_ids(0), False),
        ScheduledRequest("b", tuple(b), 0, block_ids(1), True),
    )
    b.append(runner.execute(SchedulerOutput(1, first, new)).sampled["b"][0])
    second = (
        ScheduledRequest("b", (b[-1],), 2, block_ids(1), True),
        ScheduledRequest("a", tuple(a[3:]), 3, block_ids(0), True),
    )
    result = runner.execute(SchedulerOutput(2, second))
    assert result.sampled == {
        "a": (int(logits_of(a).argmax()),),
        "b": (int(logits_of(b).argmax()),),
    }
    assert model.num_tokens_per_pass == [5, 3]


def test_rows_move_and_tables_grow_as_requests_come_and_go():
    """Three requests decode over block borders; one leaves, one comes, one gets other blocks after a preemption."""
    runner = make_fast_runner()
    contexts = {"a": [1, 2, 3], "b": [4, 4], "c": [5]}
    run(runner, contexts, 6)
    del contexts["a"]
    contexts["d"] = [7, 7, 7]
    blocks = {"b": tuple(range(20, 26)), "c": block_ids(2), "d": block_ids(0)}
    computed = {"b": 0, "c": len(contexts["c"]) - 1, "d": 0}
    new = (NewRequest("b", GREEDY, None, tuple(contexts["b"][2:])), NewRequest("d", GREEDY, None, ()))
    for step in range(6):
        rows = tuple(
            ScheduledRequest(name, tuple(context[computed[name] :]), computed[name], blocks[name], True)
            for name, context in contexts.items()
        )
        result = runner.execute(
            SchedulerOutput(10 + step, rows, new if step == 0 else (), ("a", "b") if step == 0 else ())
        )
        for name, context in contexts.items():
            computed[name] = len(context)
            assert result.sampled[name] == (int(logits_of(context).argmax()),)
            context.append(result.sampled[name][0])


@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_steps_in_flight_read_their_tokens_on_the_device(params: SamplingParams):
    """Each step is submitted before the last is collected; a prompt joins in between."""
    expected = run(make_runner(), {"a": [1, 2, 3], "b": [4]}, 5, params)
    runner = make_fast_runner()
    said: dict[str, list[int]] = {"a": [], "b": []}
    lengths = {"a": 3, "b": 1}
    new = {"a": NewRequest("a", params, None, ()), "b": NewRequest("b", params, None, ())}
    pending = runner.submit(
        SchedulerOutput(1, (ScheduledRequest("a", (1, 2, 3), 0, block_ids(0), True),), (new["a"],))
    )
    joined = False
    for step in range(2, 7):
        rows = [ScheduledRequest("a", (UNSEEN,), lengths["a"], block_ids(0), True)]
        lengths["a"] += 1
        news: tuple[NewRequest, ...] = ()
        if step == 3:
            rows.append(ScheduledRequest("b", (4,), 0, block_ids(1), True))
            news, joined = (new["b"],), True
        elif joined:
            rows.append(ScheduledRequest("b", (UNSEEN,), lengths["b"], block_ids(1), True))
            lengths["b"] += 1
        following = runner.submit(SchedulerOutput(step, tuple(rows), news))
        for name, token_ids in runner.collect(pending).sampled.items():
            said[name] += token_ids
        pending = following
    assert said["a"] == expected["a"]
    assert said["b"] == expected["b"][: len(said["b"])]
    assert len(said["b"]) == 3


def test_a_token_that_is_not_seen_goes_along_with_a_prompt():
    runner = make_fast_runner()
    pending = runner.submit(
        SchedulerOutput(
            1,
            (ScheduledRequest("a", (1, 2), 0, block_ids(0), True),),
            (NewRequest("a", GREEDY, None, ()), NewRequest("b", GREEDY, None, ())),
        )
    )
    rows = (
        ScheduledRequest("b", (6, 6, 6), 0, block_ids(1), True),
        ScheduledRequest("a", (UNSEEN,), 2, block_ids(0), True),
    )
    following = runner.submit(SchedulerOutput(2, rows))
    a = greedy_continuation([1, 2], 2)
    assert runner.collect(pending).sampled == {"a": (a[0],)}
    assert runner.collect(following).sampled == {"a": (a[1],), "b": tuple(greedy_continuation([6, 6, 6], 1))}


ALONG = CompiledGrammar(TOKENIZER, 'start: "abcdefghij"')
LETTERS = tuple(40 + ord(letter) for letter in "abcdefghij")


@pytest.mark.parametrize("params", [GREEDY, replace(RANDOM, temperature=0.3), PARAMS["banned"]])
def test_steps_with_drafts_give_what_the_plain_runner_gives(params: SamplingParams):
    """Right drafts, wrong ones, some that a grammar does not allow, beside a plain row and a chunk of a prompt."""
    said = greedy_continuation([1, 2, 3, 4, 5], 8)
    steps = [
        SchedulerOutput(
            1,
            (
                ScheduledRequest("right", (1, 2, 3, 4, 5), 0, block_ids(0), True),
                ScheduledRequest("wrong", (1, 2, 3, 4, 5), 0, tuple(range(20, 24)), True),
                ScheduledRequest("grammar", (9,), 0, tuple(range(24, 28)), True),
                ScheduledRequest("plain", (8, 7), 0, tuple(range(28, 32)), True),
            ),
            tuple(
                NewRequest(name, params, GrammarSpec("along") if name == "grammar" else None, ())
                for name in ("right", "wrong", "grammar", "plain", "late")
            ),
        ),
        SchedulerOutput(
            2,
            (
                ScheduledRequest("right", tuple(said[:4]), 5, block_ids(0), True, num_drafts=3),
                ScheduledRequest("wrong", (said[0], said[1], 77), 5, tuple(range(20, 24)), True, num_drafts=2),
                ScheduledRequest("late", (6, 6, 6, 6), 0, tuple(range(32, 36)), False),
                ScheduledRequest("plain", (5,), 2, tuple(range(28, 32)), True),
                ScheduledRequest("grammar", (*LETTERS[:4], 99), 1, tuple(range(24, 28)), True, num_drafts=4),
            ),
        ),
        SchedulerOutput(3, (ScheduledRequest("grammar", (LETTERS[4],), 5, tuple(range(24, 28)), True),)),
    ]
    grammars = {GrammarSpec("along"): ALONG}.__getitem__
    fast = FastRunner(FastContextModel(), make_pool(64, 4), 3, grammars, VOCAB_SIZE)
    plain = ModelRunner(ContextModel(), make_pool(64, 4), 3, grammars)
    for step in steps:
        result, expected = fast.execute(step), plain.execute(step)
        assert (result.sampled, result.failures) == (expected.sampled, expected.failures)
        if step.step == 2:
            assert result.sampled["grammar"] == LETTERS[1:5]
            if params is GREEDY:
                assert result.sampled["right"] == tuple(said[1:5])
                assert result.sampled["wrong"] == tuple(said[1:3])


def test_a_sick_row_behind_drafts_that_stand_is_left_to_the_next_step():
    said = greedy_continuation([1, 2], 3)
    runner = make_fast_runner(FastContextModel(sick_token=said[1]))
    first = ScheduledRequest("r", (1, 2), 0, block_ids(0), True)
    runner.execute(SchedulerOutput(1, (first,), (NewRequest("r", GREEDY, None, ()),)))
    drafted = ScheduledRequest("r", tuple(said), 2, block_ids(0), True, num_drafts=2)
    assert runner.execute(SchedulerOutput(2, (drafted,))).sampled["r"] == (said[1],)
    again = ScheduledRequest("r", (said[1],), 3, block_ids(0), True)
    assert runner.execute(SchedulerOutput(3, (again,))).failures["r"].code == "numerics"


def test_an_empty_step_launches_nothing():
    model = FastContextModel()
    runner = make_fast_runner(model)
    assert runner.execute(SchedulerOutput(1, (), finished_request_ids=("never seen",))).sampled == {}
    assert model.num_tokens_per_pass == []


def test_decode_sizes_are_all_to_16_and_then_steps():
    assert decode_sizes(3) == (1, 2, 3)
    assert decode_sizes(32) == (*range(1, 17), 24, 32)
    assert decode_sizes(36) == (*range(1, 17), 24, 32, 36)


def test_memory_growth_is_counted_from_ready():
    runner = make_fast_runner()
    with pytest.raises(RuntimeError, match="not ready"):
        runner.growth_since_ready()
    runner.mark_ready()
    assert runner.growth_since_ready() == MemoryGrowth(0, 0)


def test_a_single_token_of_an_image_is_not_decoded_by_a_graph():
    """A graph reads token ids alone; a chunk of a prompt may be as short as an answer's step."""
    seen = []

    class Watched(FastContextModel):
        def hidden(self, batch, latent_pool):
            seen.append(None if batch.images is None else batch.images.embeddings.tolist())
            return super().hidden(batch, latent_pool)

    encoder = EncoderCache(
        lambda patches, grids: torch.tensor([[2.5], [3.5]]), 2, 25, 1, torch.device("cpu"), torch.float32
    )
    runner = FastRunner(Watched(), make_pool(64, 4), 3, {}.__getitem__, VOCAB_SIZE, encoder)
    token_ids, images = prompt_of(1, random_image(0, 1, 2), 5)
    for position, token_id in enumerate(token_ids):
        touched = images if images[0].offset <= position < images[0].end else ()
        row = ScheduledRequest("r", (token_id,), position, block_ids(0), position == 4, images=touched)
        new = (NewRequest("r", GREEDY, None, ()),) if position == 0 else ()
        runner.execute(SchedulerOutput(position, (row,), new, images=images if position == 1 else ()))
    assert seen[1:4] == [[[2.5]], [[3.5]], []]
    assert seen[0] is seen[4] is None
