"""Mends what a client's history holds, so that no conversation ends in errors for ever.

A client sends its whole history with every request: what was refused once would be refused always.
So the last message is checked, and everything before it is mended. What the server cannot read is
left out and named in a response header; the rules are on the page "Conversations".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, Final

Object = dict[str, Any]
TEXT_PARTS: Final = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
"""Types of parts with a `text`."""


class LeftOut:
    """Paths of what is left out of a body, such as `messages.2.content.0`."""

    def __init__(self, modalities: Collection[str] = ()) -> None:
        """Media of `modalities` are not left out."""
        self.paths: list[str] = []
        self.modalities = frozenset(modalities)

    def note(self, path: str) -> None:
        """Note one path."""
        self.paths.append(path)


Mend = Callable[[Object, LeftOut], None]
"""Mends a decoded body in place, before its fields are checked."""


def without_nulls(value: Object, keep: Collection[str] = ()) -> Object:
    """Return an object without the fields that are null."""
    return {name: item for name, item in value.items() if item is not None or name in keep}


def as_text(value: Any) -> str:
    """Return a value as text: other values than texts as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def mend_each(
    body: Object, left_out: LeftOut, mend: Callable[[Object, str, bool], Object | None]
) -> None:
    """Mend the messages of a body one by one.

    `mend` gets a message, its path and whether it is the last one; None: it cannot be read. Then
    the last message stays as it is, to be checked, and an earlier one is left out.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    found: list[Any] = []
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        is_last = index == len(messages) - 1
        mended = mend(message, path, is_last) if isinstance(message, dict) else None
        if mended is not None:
            found.append(mended)
        elif is_last:
            found.append(message)
        else:
            left_out.note(path)
    body["messages"] = found


def mend_parts(
    content: Any,
    path: str,
    left_out: LeftOut,
    reads: Callable[[Object], Object | None],
    *,
    text_type: str = "text",
    keeps: Collection[str] = (),
    with_placeholder: bool = False,
) -> Any:
    """Return the content of an earlier message with readable parts only.

    `reads` returns a part as it can be read, or None. Parts of the types `keeps` stay.
    `with_placeholder`: a text takes the place of what is left out, since the model waits for it.
    """
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    found: list[Object] = []
    for index, part in enumerate(parts):
        if not isinstance(part, dict):
            found.append({"type": text_type, "text": as_text(part)})
            continue
        plain = without_nulls(part)
        read = plain if plain.get("type") in keeps else reads(plain)
        if read is not None:
            found.append(read)
            continue
        left_out.note(f"{path}.{index}")
        if with_placeholder:
            kind = part.get("type")
            text = f"[a part of type {as_text(kind)[:80]} is left out: this model reads text]"
            found.append({"type": text_type, "text": text})
    return found
