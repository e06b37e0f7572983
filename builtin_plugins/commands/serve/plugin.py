"""`engine serve`: the command and the memory limit of the API process."""

from __future__ import annotations

from typing import Annotated

from core.api import Entry, Option, Range, hookimpl
from core.api.config import Size


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    return [
        Entry("serve", "builtin_plugins.commands.serve.command:Serve", "serve a model over HTTP")
    ]


@hookimpl
def engine_options() -> list[Option]:
    """Return the memory limit."""
    text = (
        "Memory above which the API process restarts, without the engine; 0: no limit; "
        "default: a quarter of the machine's, 1 to 8 GiB."
    )
    return [Option("api_memory_limit", Annotated[Size, Range(0, 1 << 60)] | None, None, text)]
