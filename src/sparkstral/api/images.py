"""An image as a client writes it → ImagePart: a data URL, base64, or a URL to be fetched.

Owns the spellings and what is said about wrong ones; must not know images' formats (chat/images) or the network
(serving/fetch).
"""

from __future__ import annotations

import base64
import binascii
import re

from sparkstral.errors import RequestError
from sparkstral.types import ImagePart

_DATA_URL = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_WEB = ("http://", "https://")


def image_from_url(url: str, place: str) -> ImagePart:
    """Raises RequestError, naming `place`, for what is neither a data URL in base64 nor one of the web."""
    head = _DATA_URL.match(url)
    if head is not None:
        if not head[0].lower().endswith(";base64,"):
            raise RequestError(f"`{place}` is a data URL that is not in base64; write data:image/png;base64,…", place)
        return image_from_base64(url[head.end() :], place)
    if url[:8].lower().startswith(_WEB):
        return ImagePart(place, url=url)
    raise RequestError(
        f"`{place}` is an image at {url[:40]!r}; send it as a data URL (data:image/png;base64,…), or name one of http "
        "or https.",
        place,
    )


def image_from_base64(data: str, place: str) -> ImagePart:
    """Raises RequestError, naming `place`. Line breaks are let pass, as is missing padding."""
    text = "".join(data.split()).rstrip("=")
    try:
        return ImagePart(place, base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (binascii.Error, ValueError):  # the latter for what is not ASCII
        raise RequestError(f"`{place}` is an image that is no base64.", place) from None


def refuse_file_id(place: str) -> RequestError:
    return RequestError(f"`{place}` names an image by a file id; this server keeps no files. Send a data URL.", place)
