"""A subcommand: `engine acme`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.api import CommandContext

EXAMPLES = [(["--name", "Ada"], "Hello, Ada.\n"), ([], "Hello, world.\n")]
"""Arguments and the expected output."""


class Acme:
    """Prints a greeting."""

    help = "Say hello."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--name", default="world", help="name to greet")

    def run(self, context: CommandContext) -> int:
        """Print the greeting and return the exit status."""
        sys.stdout.write(f"Hello, {context.args.name}.\n")
        return 0
