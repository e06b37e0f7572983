"""The newest response of one connection, continued without being stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from builtin_plugins.routes.responses.table_reader import MAX_CHAIN, StoredResponse
from core.api import InvalidRequest

_CALLS: Final = ("function_call", "custom_tool_call")
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
        """Hold the last response of a chain instead of the held one."""
        self._chain = list(chain) if len(chain) <= MAX_CHAIN else []

    def evict(self, response_id: str) -> None:
        """Hold nothing more if this response is held: a request that continued it has failed."""
        if self.chain(response_id) is not None:
            self._chain = []


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
