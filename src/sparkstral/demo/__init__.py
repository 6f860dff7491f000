"""The demo model's exercises: conversations with one right answer each, for its training and its evaluation.

Standard library only. `training_mix` and `sample` draw conversations, `eval_items` draws held-out ones,
`wrong_answer` judges an answer. One in ten of the things of every kind (names, cities, pairs of numbers,
invented tools, wordings of a question) is held out: as a thing of that kind it never occurs in training.
"""

from __future__ import annotations

from sparkstral.demo.catalogue import SKILLS, VISION, Skill, eval_items, sample, skill_named, training_mix
from sparkstral.demo.conversation import Conversation, EvalItem, EvalTurn, wrong_answer
from sparkstral.demo.skills.passkey import passkey
from sparkstral.demo.worlds import Split

__all__ = [
    "SKILLS", "VISION", "Conversation", "EvalItem", "EvalTurn", "Skill", "Split", "eval_items", "passkey", "sample",
    "skill_named",
    "training_mix", "wrong_answer",
]  # fmt: skip
