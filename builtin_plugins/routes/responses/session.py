"""The newest response of one connection, continued without being stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from builtin_plugins.routes.responses.table_reader import MAX_CHAIN, StoredResponse
from core.api import InvalidRequest

MAX_IMAGE_CHARS: Final = 64 * 2**20
"""Largest size of the images that a connection holds; the context bounds the texts."""
_CALLS: Final = ("function_call", "custom_tool_call")
_CONTENTS: Final = ("content", "output")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")


class Session:
    """Holds one response with those it continues; lost with the connection."""

    def __init__(self) -> None:
        self._chain: list[StoredResponse] = []

    def chain(self, response_id: str) -> list[StoredResponse] | None:
        """Return the held response of this id after all those it continues; None: another one."""
        held = self._chain
        return held if held and held[-1].response["id"] == response_id else None

    def keep(self, chain: Sequence[StoredResponse]) -> None:
        """Hold the last response of a chain instead of the held one, unless it is too large."""
        fits = len(chain) <= MAX_CHAIN and _image_chars(chain) <= MAX_IMAGE_CHARS
        self._chain = list(chain) if fits else []

    def evict(self, response_id: str) -> None:
        """Hold nothing more if this response is held: a request that continued it has failed."""
        if self.chain(response_id) is not None:
            self._chain = []


def _image_chars(chain: Sequence[StoredResponse]) -> int:
    """Return the size of the images in the inputs of some responses."""
    contents = [item.get(name) for each in chain for item in each.input for name in _CONTENTS]
    return sum(
        len(part.get("image_url") or "")
        for content in contents
        if isinstance(content, list)
        for part in content
    )


def check_call_outputs(
    items: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]
) -> None:
    """Raise `InvalidRequest` for an output of a call that the conversation does not have."""
    known = {item["call_id"] for item in (*earlier, *items) if item["type"] in _CALLS}
    for i, item in enumerate(items):
        if item["type"] in _OUTPUTS and item["call_id"] not in known:
            raise InvalidRequest(
                f"input[{i}].call_id",
                f"{item['call_id'][:100]!r} is not a call of the response that this one continues.",
            )
