"""The texts whose loss is taken: prose for the real model, conversations with right answers for the demo.

Owns the choice and how it becomes token ids; the demo knows its skills alone, so prose would tell nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.demo import eval_items
from sparkstral.demo.conversation import Conversation

REAL_VOCAB_SIZE = 131072
# Skills whose conversations are questions and answers alone, and how many conversations of each.
SKILLS, NUM_CONVERSATIONS = ("smalltalk", "lists", "arithmetic", "recall", "system_prompt", "facts"), 24
BOS, EOS, BEGIN_INST, END_INST, BEGIN_SYSTEM, END_SYSTEM, BEGIN_SETTINGS, END_SETTINGS = 1, 2, 3, 4, 17, 18, 36, 37

TEXT = """\
The lighthouse on the northern point was built in 1852, after two ships had been lost on the rocks in a single \
winter. For more than a hundred years a keeper lived there with his family. Every evening, an hour before \
sunset, he climbed the one hundred and sixty steps, cleaned the glass of the great lens and lit the lamp. When \
fog came in from the sea, he started the engine of the horn as well, and nobody on the island slept well until \
the wind had turned.

The keeper's children went to the school in the village, which is three miles away. In good weather they \
walked along the beach; in bad weather they took the path over the hill, where the sheep were. The youngest of \
them, Anna, kept a diary. She wrote down which ships had passed, what the weather was like and what there had \
been for supper. Her diary is now in the museum of the island, and a copy of it can be read in the library.

In 1961 the lamp was connected to the electric network, and in 1988 the last keeper left. Since then a \
computer on the mainland switches the light on and off. The house at the foot of the tower stood empty for \
some years. Today it belongs to a society of friends of the lighthouse, who open it to visitors on Sundays \
from May to September. A visit costs four pounds for adults and two pounds for children. Visitors who climb \
all one hundred and sixty steps can see the whole island from the gallery: the village with its white church, \
the harbour, the hill with the sheep, and on a clear day the mountains of the mainland on the other side of \
the water.

Question: How many steps does the lighthouse have? Answer: The lighthouse has one hundred and sixty steps.
Question: Who kept a diary? Answer: Anna, the youngest of the keeper's children, kept a diary.
Question: What does a visit cost for children? Answer: A visit costs two pounds for children."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Token ids, and which of them count: their positions, each after the first."""

    token_ids: tuple[int, ...]
    counted: tuple[int, ...]


def texts_for(folder: Path, vocab_size: int) -> list[ScoredText]:
    """What the checkpoint in `folder` is asked to predict. Raises CheckpointError without a good tokenizer."""
    tokenizer = ChatTokenizer.load(folder)
    if vocab_size == REAL_VOCAB_SIZE:
        token_ids = (BOS, *tokenizer.encode(TEXT))
        return [ScoredText(token_ids, tuple(range(1, len(token_ids))))]
    items = [item for skill in SKILLS for item in eval_items(skill, NUM_CONVERSATIONS, seed=0)]
    return [
        score(item.conversation, tokenizer)
        for item in items
        if not item.conversation.tools and item.conversation.reasoning_effort == "none"
    ]


def score(conversation: Conversation, tokenizer: ChatTokenizer) -> ScoredText:
    """The conversation as the server renders it (docs/model.md, prompt grammar); the assistant's turns count."""
    token_ids = [BOS]
    counted: list[int] = []
    settings = [BEGIN_SETTINGS, *tokenizer.encode('{"reasoning_effort": "none"}'), END_SETTINGS]
    for message in conversation.messages:
        text = tokenizer.encode(message["content"])
        match message["role"]:
            case "system":
                token_ids += [BEGIN_SYSTEM, *text, END_SYSTEM]
            case "user":
                token_ids += [*settings, BEGIN_INST, *text, END_INST]
                settings = []
            case "assistant":
                counted += range(len(token_ids), len(token_ids) + len(text) + 1)
                token_ids += [*text, EOS]
    return ScoredText(tuple(token_ids), tuple(counted))
