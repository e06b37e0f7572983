"""`engine serve`: the command and what bounds the process that serves."""

from __future__ import annotations

from typing import Annotated

from core.api import Entry, Option, Within, hookimpl
from core.config.values import Size


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    return [
        Entry("serve", "builtin_plugins.commands.serve.command:Serve", "serve a model over HTTP")
    ]


@hookimpl
def engine_options() -> list[Option]:
    """Give the bound."""
    text = (
        "Memory of the API process above which it is started again, the engine untouched; 0: no "
        "bound; "
        "default: a quarter of the machine's, 1 to 8 GiB."
    )
    return [Option("api_memory_limit", Annotated[Size, Within(0, 1 << 60)] | None, None, text)]
