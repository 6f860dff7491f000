"""Pictures of the demo: drawn from chance alone, small, and split by pairs."""

from __future__ import annotations

import base64
import io
import random

import pytest
from PIL import Image

from sparkstral.demo import Split, eval_items, sample
from sparkstral.demo.skills.vision import COLOURS, COUNTS, LABELS, MAX_SIDE, PLACES, SHAPES

ANSWERS = {
    "colour": {f"{colour.capitalize()}." for colour in COLOURS},
    "shape": {f"A {shape}." for shape in SHAPES},
    "count": {f"{count.capitalize()}." for count in COUNTS},
    "digit": {f"{digit}." for digit in range(10)},
    "position": {f"{place.capitalize()}." for place in PLACES},
}


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("label", LABELS)
def test_a_picture_has_a_question_and_a_right_answer(label: str, split: Split) -> None:
    answers = set()
    for seed in range(60):
        conversation = sample(random.Random(seed), "vision", split, label)
        assert conversation == sample(random.Random(seed), "vision", split, label)
        picture, question = conversation.messages[0]["content"]
        data = base64.b64decode(picture["image_url"]["url"].partition(",")[2])
        with Image.open(io.BytesIO(data)) as image:
            assert max(image.size) <= MAX_SIDE
            assert len(image.getcolors(1 << 16)) > 1
        assert question["text"].endswith(("?", "."))
        answers.add(conversation.messages[1]["content"])
    assert answers <= ANSWERS[label]
    assert len(answers) >= min(2, len(ANSWERS[label]))


def test_every_kind_is_evaluated_by_itself() -> None:
    assert [item.label for item in eval_items("vision", 10, 0)] == [*LABELS, *LABELS]
