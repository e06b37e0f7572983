"""`engine acme LANGUAGE`: asks every plugin, and says whose each answer is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


EXAMPLES = [(["en"], "")]
"""Arguments, and what is printed for them where no plugin has words."""


class Acme:
    """Asks the hook once."""

    help = "Print the words that plugins bring."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the language."""
        parser.add_argument("language")

    def run(self, context: Any) -> int:
        """Print a line for each plugin; an exception in one of them is blamed on it."""
        for plugin, words in context.registry.ask(
            "engine_acme_words", language=context.args.language
        ):
            print(f"{plugin.name}: {', '.join(words)}")
        return 0
