"""Pictures: the colour and kind of a shape, how many there are, a digit, where something is.

Owns the drawing (Pillow) and the questions. Pictures are at most 112 pixels a side, four tokens each way: the demo's
tower is trained for that, and larger pictures are scaled down to it. Held out are triples (a colour with a shape and a
size, a count with a colour and a shape …), by the hash of worlds.is_held_out, so that an answer is seen and not remembered.
"""

from __future__ import annotations

import base64
import io
import random

from PIL import Image, ImageDraw

from sparkstral.demo.conversation import Conversation, Message, assistant
from sparkstral.demo.worlds import Split, is_held_out

MAX_SIDE = 112
_SIDES = (84, 112)
COLOURS = {
    "red": (214, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 220), "yellow": (245, 205, 40),
    "black": (20, 20, 20), "orange": (245, 130, 30), "purple": (130, 50, 170), "brown": (120, 75, 40),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "cross")
COUNTS = ("one", "two", "three", "four", "five")
PLACES = {
    "on the left": (0.2, 0.5), "on the right": (0.8, 0.5), "at the top": (0.5, 0.2), "at the bottom": (0.5, 0.8),
    "in the middle": (0.5, 0.5),
}  # fmt: skip
# Of each digit the strokes that are drawn, on a grid of 2 by 4: a font would be another dependency.
_SEGMENTS = {
    "a": ((0, 0), (2, 0)), "b": ((2, 0), (2, 2)), "c": ((2, 2), (2, 4)), "d": ((0, 4), (2, 4)), "e": ((0, 2), (0, 4)),
    "f": ((0, 0), (0, 2)), "g": ((0, 2), (2, 2)),
}  # fmt: skip
_DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
LABELS = ("colour", "shape", "count", "digit", "position")
_QUESTIONS = {
    "colour": ("What colour is it?", "Which colour is the {thing}?", "What is the colour of the {thing}?"),
    "shape": ("What shape is it?", "Which shape do you see?", "What is the shape in the picture?"),
    "count": ("How many shapes are there?", "Count the shapes.", "How many {thing}s do you see?"),
    "digit": ("Which digit is it?", "What number do you see?", "Read the digit."),
    "position": ("Where is the {thing}?", "Where in the picture is the {thing}?", "Where is it?"),
}


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One question about one picture."""
    label = label or rng.choice(LABELS)
    while True:
        colour, shape, place = rng.choice(list(COLOURS)), rng.choice(SHAPES), rng.choice(list(PLACES))
        number, digit, scale = rng.randrange(5), rng.randrange(10), rng.randrange(3)
        triple = {
            "colour": f"{colour} {shape} {scale}", "shape": f"{shape} {colour} {scale}",
            "count": f"{number} {colour} {shape}", "digit": f"{digit} {colour} {scale}",
            "position": f"{place} {shape} {colour}",
        }[label]  # fmt: skip
        if is_held_out(f"vision {label}", triple) is (split is Split.HELD_OUT):
            break
    size = rng.choice(_SIDES), rng.choice(_SIDES)
    image = Image.new("RGB", size, tuple(rng.randrange(225, 256) for _ in range(3)))
    draw = ImageDraw.Draw(image)
    match label:
        case "count":
            cells = rng.sample([(x, y) for x in (0.2, 0.5, 0.8) for y in (0.2, 0.5, 0.8)], number + 1)
            for cell in cells:
                _draw_shape(draw, shape, _tinted(rng, colour), _near(rng, cell, size, 0.03), 0.11 * min(size))
            answer = f"{COUNTS[number].capitalize()}."
        case "digit":
            unit = (0.14 + 0.02 * scale + rng.uniform(0, 0.02)) * min(size)
            _draw_digit(draw, rng, digit, _tinted(rng, colour), size, unit)
            answer = f"{digit}."
        case "position":
            _draw_shape(draw, shape, _tinted(rng, colour), _near(rng, PLACES[place], size, 0.05), 0.14 * min(size))
            answer = f"{place.capitalize()}."
        case _:
            radius = (0.16 + 0.06 * scale + rng.uniform(0, 0.06)) * min(size)
            _draw_shape(draw, shape, _tinted(rng, colour), _near(rng, (0.5, 0.5), size, 0.12), radius)
            answer = f"A {shape}." if label == "shape" else f"{colour.capitalize()}."
    question = rng.choice(_QUESTIONS[label]).format(thing=shape)
    return Conversation("vision", (_shown(image, question), assistant(answer)), label=label)


def _shown(image: Image.Image, question: str) -> Message:
    file = io.BytesIO()
    image.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url}}
    return {"role": "user", "content": [picture, {"type": "text", "text": question}]}


def _tinted(rng: random.Random, colour: str) -> tuple[int, ...]:
    return tuple(max(0, min(255, part + rng.randint(-12, 12))) for part in COLOURS[colour])


def _near(rng: random.Random, at: tuple[float, float], size: tuple[int, int], by: float) -> tuple[float, float]:
    return (at[0] + rng.uniform(-by, by)) * size[0], (at[1] + rng.uniform(-by, by)) * size[1]


def _draw_shape(
    draw: ImageDraw.ImageDraw, shape: str, colour: tuple[int, ...], at: tuple[float, float], radius: float
) -> None:
    x, y = at
    match shape:
        case "circle":
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        case "square":
            draw.rectangle((x - radius, y - radius, x + radius, y + radius), fill=colour)
        case "triangle":
            draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=colour)
        case "star":
            outline = [(0, -1), (0.25, -0.3), (1, -0.3), (0.4, 0.2), (0.6, 1), (0, 0.5), (-0.6, 1), (-0.4, 0.2),
                       (-1, -0.3), (-0.25, -0.3)]  # fmt: skip
            draw.polygon([(x + radius * dx, y + radius * dy) for dx, dy in outline], fill=colour)
        case "cross":
            third = radius / 3
            draw.rectangle((x - radius, y - third, x + radius, y + third), fill=colour)
            draw.rectangle((x - third, y - radius, x + third, y + radius), fill=colour)


def _draw_digit(
    draw: ImageDraw.ImageDraw,
    rng: random.Random,
    digit: int,
    colour: tuple[int, ...],
    size: tuple[int, int],
    unit: float,
) -> None:
    left, top = (size[0] / 2 - unit) + rng.uniform(-8, 8), (size[1] / 2 - 2 * unit) + rng.uniform(-6, 6)
    width = max(4, round(unit * rng.uniform(0.3, 0.5)))
    for segment in _DIGITS[digit]:
        (x0, y0), (x1, y1) = _SEGMENTS[segment]
        half = width / 2
        draw.rectangle(
            (left + unit * x0 - half, top + unit * y0 - half, left + unit * x1 + half, top + unit * y1 + half), fill=colour
        )
