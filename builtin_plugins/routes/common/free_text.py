"""Custom tools, which take a text: a model writes it as the argument `input` of a function."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

TEXT_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Parameters of a custom tool, in a form that every model family can write."""
_BEGIN: Final = '{"input": "'
_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*+', re.DOTALL)


def is_plain_text(form: Any) -> bool:
    """Return whether the format of a custom tool allows any text; grammars are not held."""
    return form is None or (isinstance(form, Mapping) and form.get("type", "text") == "text")


class FreeText:
    """Input of a custom tool, extracted from the pieces of the call's JSON arguments."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._emitted: list[str] = []
        self._open = False

    def add(self, piece: str) -> str:
        """Return the new text of a piece; pieces contain only complete escapes."""
        self._pieces.append(piece)
        if len(self._pieces) == 1 and piece.startswith(_BEGIN):
            piece = piece.removeprefix(_BEGIN)
            self._open = True
        if not self._open:
            return ""
        found = _STRING.match(piece)
        body = found[0] if found else ""
        self._open = len(body) == len(piece)
        self._emitted.append(str(msgspec.json.decode(f'"{body}"')))
        return self._emitted[-1]

    def end(self) -> tuple[str, str]:
        """Return the whole text, and the part not returned before."""
        emitted = "".join(self._emitted)
        arguments = "".join(self._pieces)
        try:
            value = msgspec.json.decode(arguments)
        except msgspec.DecodeError:  # an incomplete call
            return (emitted, "") if emitted else (arguments, arguments)
        text = value.get("input") if isinstance(value, dict) else None
        whole = text if isinstance(text, str) else arguments
        return whole, whole.removeprefix(emitted)
