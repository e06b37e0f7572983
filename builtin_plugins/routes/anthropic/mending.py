"""Rules for the histories of Anthropic's messages."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any, Final

from builtin_plugins.output_parsers.api import call_arguments
from builtin_plugins.routes.common.mending import (
    LeftOut,
    Object,
    as_text,
    mend_each,
    mend_parts,
    without_nulls,
)

_ROLES: Final = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
"""Anthropic's role by the client's."""
_KNOWN: Final = (
    "text",
    "image",
    "document",
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
)
"""Types of blocks that are checked in the last message."""


def mend_messages(body: Object, left_out: LeftOut) -> None:
    """Mend all messages but the last, every tool result, and the system blocks."""
    if "system" in body:
        body["system"] = mend_parts(body["system"], "system", left_out, _read_text)
    mend_each(body, left_out, partial(_mended, left_out))


def _mended(left_out: LeftOut, message: Object, path: str, is_last: bool) -> Object | None:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return None
    content = message.get("content")
    content = "" if content is None else content
    reader = _Blocks(_ROLES[role], f"{path}.content", left_out)
    if not is_last:
        content = mend_parts(content, reader.path, left_out, reader.read)
    elif isinstance(content, list):
        content = [reader.read_last(block, i) for i, block in enumerate(content)]
        content = [block for block in content if block is not None]
    return {**message, "role": _ROLES[role], "content": content}


class _Blocks:
    """Reads the content blocks of one message."""

    def __init__(self, role: str, path: str, left_out: LeftOut) -> None:
        self.path = path
        self._role = role
        self._left_out = left_out
        self._takes_images = "image" in left_out.modalities

    def read(self, block: Object) -> Object | None:
        """Return a block as it can be read in an earlier message of the role; None if it cannot."""
        match block.get("type", "text"):
            case "text":
                return _read_text(block)
            case "document" if isinstance(block.get("source"), dict):
                source = block["source"]
                is_text = source.get("type") == "text" and isinstance(source.get("data"), str)
                return block if is_text else None
            case "image" if self._role == "user" and self._takes_images:
                return block
            case "tool_result" if self._role == "user" and isinstance(
                block.get("tool_use_id"), str
            ):
                return self._result(block)
            case "tool_use" if self._role == "assistant" and isinstance(block.get("name"), str):
                given_id = block.get("id")
                call_id = given_id if isinstance(given_id, str) else new_call_id()
                return {**block, "id": call_id, "input": call_arguments(block.get("input"))}
            case "thinking" if self._role == "assistant":
                texts = {name: as_text(block.get(name)) for name in ("thinking", "signature")}
                return {**block, **texts}
            case "redacted_thinking" if self._role == "assistant":
                return {"type": "redacted_thinking"}
        return None

    def read_last(self, block: Any, index: int) -> Any:
        """Return a block of the last message: what the user has sent is left to be checked."""
        if not isinstance(block, dict):
            return block
        given = without_nulls(block)
        kind = given.get("type")
        if kind == "tool_result":
            return self.read(given) or given
        if kind in _KNOWN:
            return given
        self._left_out.note(f"{self.path}.{index}")
        return None

    def _result(self, block: Object) -> Object:
        content = mend_parts(
            block.get("content"),
            f"{self.path}.content",
            self._left_out,
            _read_result,
            keeps=("image",) if self._takes_images else (),
            with_placeholder=True,
        )
        return {**block, "content": content, "is_error": bool(block.get("is_error"))}


def new_call_id() -> str:
    """Return an id for a call without one."""
    return f"toolu_{secrets.token_hex(12)}"


def _read_text(block: Object) -> Object | None:
    is_text = block.get("type", "text") == "text"
    return {**block, "type": "text", "text": as_text(block.get("text"))} if is_text else None


def _read_result(block: Object) -> Object | None:
    """Return a block of a tool result: a text, or a document of text."""
    source = block.get("source")
    if block.get("type") == "document" and isinstance(source, dict):
        return block if source.get("type") == "text" else None
    return _read_text(block)
