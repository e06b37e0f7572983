"""Checks the arguments of calls for the keywords that their constraint left out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from builtin_plugins.grammar_backends.api import UncheckedError, broken_keywords

UNHELD_HEADER: Final = "X-Unheld-Constraints"
_MAX_CALLS: Final = 8
"""Largest number of calls to check in one answer."""
_MAX_NAMED: Final = 20


class CallCheck:
    """The calls of a whole answer, and the header that says which constraints they break."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = {
            tool["function"]["name"]: (
                f"tools.{index}.function.parameters",
                {**(tool["function"].get("parameters") or {})},
            )
            for index, tool in enumerate(tools)
        }
        self._calls: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}
        """The response header, after `run`."""

    def add(self, name: str, arguments: str) -> None:
        """Note a complete call."""
        self._calls.append((name, arguments))

    async def run(self) -> None:
        """Check the calls with the tools' own schemas, in a thread."""
        found = await asyncio.to_thread(self._broken)
        names = [re.sub(r"[^A-Za-z0-9_.-]", "?", path[:120]) for path in found[:_MAX_NAMED]]
        self.headers = {UNHELD_HEADER: ", ".join(names) or "none"}

    def _broken(self) -> list[str]:
        """Return the paths of broken keywords, and `unchecked` if something was not checked."""
        found: dict[str, None] = {}
        is_whole = len(self._calls) <= _MAX_CALLS
        for name, arguments in self._calls[:_MAX_CALLS]:
            if name not in self._schemas:
                continue
            path, schema = self._schemas[name]
            try:
                broken = broken_keywords(schema, arguments)
            except UncheckedError:
                is_whole = False
            else:
                found.update((f"{path}.{keyword}", None) for keyword in broken)
        return [*([] if is_whole else ["unchecked"]), *found]
