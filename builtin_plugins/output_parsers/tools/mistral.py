"""Mistral: calls behind `[TOOL_CALLS]`, as a JSON list, or since tokenizer version 11 one by one
with the name in front.

Formats: the chat templates of mistralai/Mistral-7B-Instruct-v0.3 (list),
Mistral-Small-3.1-24B-Instruct-2503 (with `[CALL_ID]`) and Magistral-Small-2509 (with `[ARGS]`), and
the encoders of mistral-common.
"""

from __future__ import annotations

import secrets
import string
from typing import Final

from builtin_plugins.output_parsers.tools.json_calls import one_or_list
from core.api import ParseRequest, Reading, Scan, ToolFormat

_ALPHANUMERIC: Final = string.ascii_letters + string.digits


def call_id(name: str, index: int) -> str:
    """Return an id as Mistral's templates demand: nine letters or digits."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


def read(scan: Scan, request: ParseRequest) -> Reading:
    """Read `[TOOL_CALLS][{...}]` or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`, the last one
    repeated.
    """
    while (yield from scan.text("[TOOL_CALLS]")):
        with scan.attempt():
            bracket = yield from scan.maybe("[", "{")
            if bracket:
                yield from one_or_list(scan, bracket)
            else:
                name = yield from scan.word()
                given = (yield from scan.word()) if (yield from scan.maybe("[CALL_ID]")) else None
                yield from scan.maybe("[ARGS]")
                scan.call(name, (yield from scan.arguments(scan.begin(name, given))), given)


MISTRAL: Final = ToolFormat(
    read,
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    call_ends=("[TOOL_CALLS]",),
    call_id=call_id,
    signs=("[TOOL_CALLS]",),
)
