"""Conversations in the forms that strict templates take, and the text that a template loses.

A template that refuses a conversation, or does not show one of its texts, gets the same texts in
another form: system messages merged, roles alternating, one call a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

Messages = list[dict[str, Any]]
SYSTEM_ROLES: Final = ("system", "developer")
_PROBE: Final = " probe"
"""Text added to a message to see whether the template reads it."""


def alternatives(messages: Messages) -> Iterator[Messages]:
    """Yield the messages as they are, then in forms that stricter templates take."""
    yield messages
    merged = _merge_systems(messages)
    yield _merge_neighbours(merged)
    single = _merge_neighbours(_split_calls(merged))
    yield single
    yield _merge_neighbours(_without_system(single))


def lost_message(
    prompt: str, messages: Messages, generate: Callable[[Messages], str]
) -> int | None:
    """Return the index of a message with text that the prompt lacks: the last, or a system message.

    A text that the template rewrites is not lost: another text makes another prompt.
    """
    for index, message in enumerate(messages):
        if index < len(messages) - 1 and message["role"] not in SYSTEM_ROLES:
            continue
        texts = [text.strip() for text in _texts(message["content"])]
        if all(text in prompt for text in texts):
            continue
        probed = [*messages]
        probed[index] = {**message, "content": _with_probe(message["content"])}
        try:
            is_lost = generate(probed) == prompt
        except Exception:  # noqa: BLE001 - the template reads the text, and refuses this one
            is_lost = False
        if is_lost:
            return index
    return None


def _texts(content: str | list[dict[str, Any]]) -> list[str]:
    return [content] if isinstance(content, str) else [p["text"] for p in content if "text" in p]


def _with_probe(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content + _PROBE
    return [{**part, "text": part["text"] + _PROBE} if "text" in part else part for part in content]


def _joined(contents: Sequence[str | list[dict[str, Any]]]) -> Any:
    """Return several contents as one: texts joined by line breaks, or all parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n".join(text for text in contents if isinstance(text, str) and text)
    return [part for content in contents for part in content if not isinstance(part, str)]


def _merge_systems(messages: Messages) -> Messages:
    """Return the messages with all system texts in one message at the start."""
    systems = [message for message in messages if message["role"] in SYSTEM_ROLES]
    others = [message for message in messages if message["role"] not in SYSTEM_ROLES]
    if not systems:
        return others
    return [{**systems[0], "content": _joined([each["content"] for each in systems])}, *others]


def _merge_neighbours(messages: Messages) -> Messages:
    """Return the messages with neighbours of a role merged, except for tool results."""
    found: Messages = []
    for role, group in groupby(messages, key=lambda message: message["role"]):
        neighbours = [*group]
        if role == "tool" or any(message.get("tool_calls") for message in neighbours[:-1]):
            found += neighbours
        else:
            contents = [message["content"] for message in neighbours]
            found.append({**neighbours[0], **neighbours[-1], "content": _joined(contents)})
    return found


def _split_calls(messages: Messages) -> Messages:
    """Return the messages with one call each, followed by its result."""
    results: dict[Any, list[int]] = {}
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            results.setdefault(message.get("tool_call_id"), []).append(index)
    found: Messages = []
    moved: set[int] = set()
    for index, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            found += [] if index in moved else [message]
            continue
        for number, call in enumerate(calls):
            content = message["content"] if not number else message["content"][:0]
            found.append({**message, "content": content, "tool_calls": [call]})
            later = [i for i in results.get(call.get("id"), ()) if i > index and i not in moved]
            moved.update(later[:1])
            found += [messages[i] for i in later[:1]]
    return found


def _without_system(messages: Messages) -> Messages:
    """Return the messages with the system text at the start of the first user message."""
    if messages[0]["role"] not in SYSTEM_ROLES:
        return messages
    first, *rest = messages
    at = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if at is None:
        return [{**first, "role": "user"}, *rest]
    content = _joined([first["content"], rest[at]["content"]])
    rest[at] = {**rest[at], "content": content}
    return rest
