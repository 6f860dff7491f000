"""From the bytes of a request to a checked wire object, or to an error that names the field.

Owns the limits of a body (size, time, encoding, form) and the sentences about wrong fields. Knows pydantic, and no
protocol's meaning.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from sparkstral.api.door import is_foreign_page
from sparkstral.api.errors import BodyTooLargeError, BodyTooSlowError, UnsupportedMediaTypeError
from sparkstral.api.wire import KEY_ERROR, Refused, Wire
from sparkstral.config import ServerConfig
from sparkstral.errors import RequestError
from sparkstral.units import format_bytes

W = TypeVar("W", bound=Wire)

UTF8_BOM = b"\xef\xbb\xbf"  # PowerShell writes one; RFC 8259 lets us skip it
NEAR = 0.85  # difflib ratio: "temprature" and "maxTokens" are typos, "top_a" (another server's field) is not
# Names of other servers' own that nearly spell one of ours: no typos, so they are ignored like all other unknown ones.
FOREIGN_NAMES = frozenset(
    (
        "conversation_id", "frequency_penalty_decay", "logit_bias_exp", "max_new_tokens", "min_new_tokens", "mode",
        "models", "presence_penalty_range", "reasoning_format", "repetition_penalty_range", "search_options",
        "top_logprobs_num",
    )
)  # fmt: skip
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
SHOWN_CHARS = 60
MIN_BYTES_PER_S = 64 << 10  # on average, after the time that any body has: a slow line's upload is faster


async def read_body(request: Request, config: ServerConfig) -> bytes:
    """The bytes of a body that is declared as JSON.

    A missing Content-Type is taken as JSON, unless the request comes from a page of another site. Raises
    UnsupportedMediaTypeError, BodyTooLargeError or BodyTooSlowError.
    """
    if "content-type" not in request.headers and is_foreign_page(request.headers, config.cors_origins):
        # A browser lets any page post what declares no type, without asking us first.
        raise UnsupportedMediaTypeError(
            "A page of another site must declare its body; send it with the header Content-Type: application/json."
        )
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError(
            f"The body is declared as {media_type or 'nothing'}; send JSON with the header "
            "Content-Type: application/json."
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaTypeError(f"The body is declared as {encoding[:SHOWN_CHARS]}; send it as it is.")
    return await _read_limited(request, config.max_body_bytes, config.body_timeout_s)


def parse(body: bytes) -> Any:
    """The body as Python values. NaN and Infinity pass here, so that the field which holds them can be named later.
    Half of a surrogate pair, as a cut text leaves it, becomes U+FFFD: refused, it would lock an agent out for good.
    Raises RequestError for what is no JSON text in UTF-8 or is nested deeper than 200 levels."""
    body = body.removeprefix(UTF8_BOM)
    try:
        return from_json(body)
    except ValueError as error:
        whole = _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], body)
        if whole != body:
            return parse(whole)
        raise RequestError(f"The body is not valid JSON in UTF-8: {error}.") from None


async def _read_limited(request: Request, max_body_bytes: int, timeout_s: float) -> bytes:
    """The whole body. One that is too large is read on for a while, so that its client hears the answer. Whoever sends
    it byte by byte does not hold a place longer than one who sends none."""
    declared = request.headers.get("content-length", "")
    num_declared = int(declared) if declared.isdecimal() else 0
    waits_for_word = request.headers.get("expect", "").lower() == "100-continue"  # which reading would give
    if num_declared > (max_body_bytes if waits_for_word else 4 * max_body_bytes):
        raise _too_large(max_body_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    stream = request.stream()
    now_s = asyncio.get_running_loop().time
    begin_s = now_s()
    while True:
        all_by_s = begin_s + timeout_s + num_bytes / MIN_BYTES_PER_S
        try:
            async with asyncio.timeout_at(min(all_by_s, now_s() + timeout_s)):
                chunk = await anext(stream, None)
        except TimeoutError:
            if num_declared > max_body_bytes:
                raise _too_large(max_body_bytes) from None
            raise BodyTooSlowError(
                f"Of the body {format_bytes(num_bytes)} have come in {now_s() - begin_s:.3g} s, and nothing more while "
                f"this server waits: {timeout_s:g} s for any more, and in all {format_bytes(MIN_BYTES_PER_S)} a second "
                "after that. Send it again, faster."
            ) from None
        if chunk is None:
            break
        num_bytes += len(chunk)
        if num_bytes <= max_body_bytes:
            chunks.append(chunk)
        elif num_bytes > 4 * max_body_bytes:
            break
    if num_bytes > max_body_bytes:
        raise _too_large(max_body_bytes)
    return b"".join(chunks)


def _too_large(max_body_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"The body is larger than the {format_bytes(max_body_bytes)} that this server takes. Send less."
    )


def validate(model: type[W], body: Any) -> W:
    """`body` as the wire object, or RequestError naming the first wrong field.

    A key that is not in the schema but nearly spells one that is, is an error; other unknown keys stay in the
    object.
    """
    try:
        wire = model.model_validate(body)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise _field_error(details) from None
    for name in wire.model_extra or ():
        near = None if name in FOREIGN_NAMES else _nearest(name, tuple(model.model_fields))
        if near is not None:
            raise RequestError(f"There is no field `{_shown(name)}`; do you mean `{near}`?", name)
    for name, field in model.model_fields.items():
        value = getattr(wire, name)
        for mark in field.metadata:
            if isinstance(mark, Refused) and value is not None and value not in mark.neutral:
                raise RequestError(f"`{name}` is not supported: {mark.why}.", name)
    return wire


def _nearest(name: str, known: Sequence[str]) -> str | None:
    def plain(word: str) -> str:
        return word.replace("_", "").replace("-", "").lower()

    plain_names = {plain(word): word for word in known}
    found = difflib.get_close_matches(plain(name[:SHOWN_CHARS]), plain_names, 1, NEAR)
    return plain_names[found[0]] if found else None


def _field_error(details: Sequence[ErrorDetails]) -> RequestError:
    first = details[0]
    param = _param(first["loc"])
    context = first.get("ctx", {})
    match first["type"]:
        case "missing":
            message = f"`{param}` is required."
        case kind if kind.startswith(KEY_ERROR) and isinstance(first["input"], dict):
            key = kind.removeprefix(KEY_ERROR)
            param = f"{param}.{key}"
            message = f"`{param}` {first['msg']}; got {_shown(repr(first['input'].get(key)))}."
        case kind if kind in ("model_type", "dict_type") or kind.startswith(KEY_ERROR):
            message = f"`{param}` must be an object." if param else "The body must be a JSON object."
        case "string_pattern_mismatch":
            message = f"`{param}` must match {context['pattern']}; got {_shown(repr(first['input']))}."
        case "sentence":
            message = f"`{param}` {first['msg']}."
        case _:
            message = f"`{param}`: {first['msg'][:1].lower()}{first['msg'][1:]}"
            if isinstance(first["input"], str | int | float):
                message += f"; got {_shown(repr(first['input']))}"
            message += "."
    more = f" ({len(details) - 1} more after this one.)" if len(details) > 1 else ""
    return RequestError(message + more, param or None)


def _param(loc: Sequence[int | str]) -> str:
    """A place in the body as a client would spell it, messages[1].role; names of branches are left out."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("@"):
            path += f".{step}" if path else step
    return path


def _shown(text: str) -> str:
    """A text of the client's, short enough to be shown back to it."""
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
