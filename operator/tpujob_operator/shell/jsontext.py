"""JSON as the API server sends it, with parts that a user may have nested very deeply."""

from __future__ import annotations

import json
import re
from typing import Any

#: Levels that are kept: far more than any field of Kubernetes lies below the top.
KEPT_LEVELS = 200
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


def decoded(text: bytes) -> Any:
    """The value; where Python's parser would go too deep, null stands for what lies below.

    The API server takes objects of 10,000 levels. One that cannot be read would hide all others
    of its listing.

    Raises:
        ValueError: the text is no JSON.
    """
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text))


def _shallow(text: bytes) -> bytes:
    """Valid JSON with null in place of every list and object below the last level that is kept."""
    parts: list[bytes] = []
    level = begin = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in (b"{", b"["):
            level += 1
            if level == KEPT_LEVELS + 1:
                parts += (text[begin : token.start()], b"null")
        elif mark in (b"}", b"]"):
            if level == KEPT_LEVELS + 1:
                begin = token.end()
            level -= 1
    end = text[begin:] if level <= KEPT_LEVELS else b""
    return b"".join((*parts, end))
