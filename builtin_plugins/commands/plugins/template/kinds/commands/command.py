"""A subcommand: `engine acme`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

EXAMPLES = [(["--name", "Ada"], "Hello, Ada.\n"), ([], "Hello, world.\n")]
"""Arguments, and what is printed for them."""


class Acme:
    """Says hello."""

    help = "Say hello."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""
        parser.add_argument("--name", default="world", help="who is greeted")

    def run(self, context: Any) -> int:
        """Greet and return the exit status."""
        sys.stdout.write(f"Hello, {context.args.name}.\n")
        return 0
