"""Rules for the histories of chat completions."""

from __future__ import annotations

from functools import partial
from typing import Any

from builtin_plugins.routes.common.media_parts import IMAGE_PARTS
from builtin_plugins.routes.common.mending import (
    TEXT_PARTS,
    LeftOut,
    Object,
    as_text,
    mend_each,
    mend_parts,
    without_nulls,
)


def mend_messages(body: Object, left_out: LeftOut) -> None:
    """Mend all messages but the last, and every tool result."""
    mend_each(body, left_out, partial(_mended, left_out))


def _mended(left_out: LeftOut, message: Object, path: str, is_last: bool) -> Object | None:
    if not isinstance(message.get("role"), str):
        return None
    found = without_nulls(message, keep=("content",))
    if found["role"] == "function":  # OpenAI's former name
        found["role"] = "tool"
    if isinstance(found.get("content"), dict):  # one part, without its list
        found["content"] = [found["content"]]
    is_result = found["role"] == "tool"
    if is_result or not is_last:
        content = found.get("content")
        found["content"] = mend_parts(
            content,
            f"{path}.content",
            left_out,
            _read_part,
            keeps=IMAGE_PARTS if "image" in left_out.modalities else (),
            with_placeholder=is_result,
        )
    if "tool_calls" in found:
        calls = _calls(found.pop("tool_calls"), f"{path}.tool_calls", left_out)
        found |= {"tool_calls": calls} if calls else {}
    return found


def _read_part(part: Object) -> Object | None:
    kind = part.get("type", "text")
    if kind == "refusal":
        return {"type": "text", "text": as_text(part.get("refusal"))}
    return {**part, "text": as_text(part.get("text"))} if kind in TEXT_PARTS else None


def _calls(calls: Any, path: str, left_out: LeftOut) -> list[Object]:
    """Return the calls of functions; a custom tool's call is one of a function with an input."""
    found: list[Object] = []
    for index, call in enumerate(calls if isinstance(calls, list) else [calls]):
        given = without_nulls(call) if isinstance(call, dict) else {}
        custom = given.get("custom")
        function = given.get("function")
        if isinstance(custom, dict):
            function = {**custom, "arguments": {"input": as_text(custom.get("input"))}}
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            found.append({**given, "type": "function", "function": without_nulls(function)})
        else:
            left_out.note(f"{path}.{index}")
    return found
