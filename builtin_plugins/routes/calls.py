"""Calls of the engine, and their answers by engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from core.api import EngineError
from core.api.execution import CallAnswer

Call = Callable[[str, bytes], Awaitable[list[CallAnswer]]]
"""Calls a feature of the engine, like `AsyncLLM.call`."""


def require_all(answers: Sequence[CallAnswer]) -> Sequence[CallAnswer]:
    """Return the answers. Raises `EngineError` that names the engines without one."""
    failed = [f"engine {each.engine}: {each.error}" for each in answers if each.error]
    if failed:
        done = ", ".join(str(each.engine) for each in answers if not each.error)
        raise EngineError(f"{'; '.join(failed)}. Engines that have done it: {done}.")
    return answers
