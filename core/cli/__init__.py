"""The command line: two-stage parsing, commands as entries, and help."""

from core.cli.context import CommandContext

__all__ = ["CommandContext"]
