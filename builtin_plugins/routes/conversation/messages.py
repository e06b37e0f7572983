"""Messages as chat templates read them, put together from the parts in which protocols send them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any


def in_turns(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of which neighbours of one role are one: templates want roles to take turns."""
    found: list[dict[str, Any]] = []
    for role, neighbours in groupby(messages, key=lambda message: message["role"]):
        group = list(neighbours)
        found += group if role == "tool" else [_joined(group)]
    return found


def _joined(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(messages) == 1:
        return messages[0]
    texts = {
        name: "\n".join(m[name] for m in messages if m.get(name))
        for name in ("content", "reasoning_content")
    }
    if not texts["reasoning_content"]:
        del texts["reasoning_content"]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return {"role": messages[0]["role"], **texts, **({"tool_calls": calls} if calls else {})}


def packed(thoughts: str) -> str:
    """Return thoughts in a form that clients send back without looking into it."""
    return base64.b64encode(thoughts.encode(errors="replace")).decode()


def unpacked(text: str | None) -> str:
    """Return the thoughts in what `packed` made; empty for what others did."""
    try:
        return base64.b64decode(text or "", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
