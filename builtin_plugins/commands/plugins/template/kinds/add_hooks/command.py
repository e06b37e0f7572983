"""`engine acme LANGUAGE`: calls a hook of every plugin and prints the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext


EXAMPLES = [(["en"], "")]
"""Arguments, and the output when no plugin implements the hook."""


class Acme:
    """Calls the hook once."""

    help = "Print words of plugins."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the language."""
        parser.add_argument("language")

    def run(self, context: CommandContext) -> int:
        """Print one line per plugin; an exception is attributed to its plugin."""
        for plugin, words in context.registry.call_hook(
            "engine_acme_words", language=context.args.language
        ):
            print(f"{plugin.name}: {', '.join(words)}")
        return 0
