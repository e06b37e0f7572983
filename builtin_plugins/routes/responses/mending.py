"""Rules for the histories of the Responses API."""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec

from builtin_plugins.output_parsers.api import call_arguments
from builtin_plugins.routes.common.mending import (
    TEXT_PARTS,
    LeftOut,
    Object,
    as_text,
    mend_parts,
    without_nulls,
)

_ROLES: Final = ("user", "assistant", "system", "developer")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_CALLS: Final = ("function_call", "custom_tool_call")
_TEXT_FIELDS: Final = ("id", "name", "namespace", "encrypted_content", "phase")


def mend_input(body: Object, left_out: LeftOut) -> None:
    """Mend all items but the last message; leave out those of other providers."""
    items = body.get("input")
    if not isinstance(items, list):
        return
    found: list[Any] = []
    for index, item in enumerate(items):
        is_last = index == len(items) - 1
        read = _read(item, f"input.{index}", left_out, is_last=is_last)
        if read is None and len(items) == 1:
            found.append(item)
        elif read is None:
            left_out.note(f"input.{index}")
        else:
            found.append(read)
    body["input"] = found


def _read(item: Any, path: str, left_out: LeftOut, *, is_last: bool) -> Any:
    """Return an item as it can be read; None if it cannot."""
    if isinstance(item, str):
        return {"type": "message", "role": "user", "content": item}
    if not isinstance(item, dict):
        return item if is_last else None
    found = without_nulls(item)
    for name in _TEXT_FIELDS:
        if name in found and not isinstance(found[name], str):
            del found[name]
    kind = found.get("type", "message")
    if kind == "message":
        if is_last:
            return found
        if found.get("role") not in _ROLES:
            return None
        content = found.get("content")
        found["content"] = mend_parts(
            content, f"{path}.content", left_out, _read_part, keeps=_images(left_out)
        )
        return found
    if kind == "reasoning":
        for name in ("content", "summary"):
            content = mend_parts(found.get(name), f"{path}.{name}", left_out, _read_part)
            found[name] = [{"type": "summary_text", "text": content}] if content == "" else content
        if isinstance(found["summary"], str):
            found["summary"] = [{"type": "summary_text", "text": found["summary"]}]
        return found
    if kind in _OUTPUTS and isinstance(found.get("call_id"), str):
        output = found.get("output")
        if isinstance(output, dict | int | float):
            output = as_text(output)
        found["output"] = mend_parts(
            output,
            f"{path}.output",
            left_out,
            _read_part,
            keeps=_images(left_out),
            with_placeholder=True,
        )
        return found
    if kind in _CALLS and found.get("name"):
        call_id = found.get("call_id")
        found["call_id"] = call_id if isinstance(call_id, str) else f"call_{secrets.token_hex(12)}"
        if kind == "custom_tool_call":
            found["input"] = as_text(found.get("input"))
        else:
            arguments = found.get("arguments")
            found["arguments"] = (
                arguments if _is_object(arguments) else as_text(call_arguments(arguments))
            )
        return found
    served = ("item_reference", "compaction", "mcp_call", "mcp_list_tools")
    return found if kind in served else None


def _images(left_out: LeftOut) -> tuple[str, ...]:
    """Return the types of image parts that the model reads."""
    return ("input_image",) if "image" in left_out.modalities else ()


def _is_object(arguments: Any) -> bool:
    """Return whether arguments are the JSON text of an object."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return False


def _read_part(part: Object) -> Object | None:
    kind = part.get("type", "input_text")
    if kind == "refusal":
        return {**part, "refusal": as_text(part.get("refusal"))}
    text = as_text(part.get("text"))
    return {**part, "type": kind, "text": text} if kind in TEXT_PARTS else None
