"""The command line: two-stage parse, commands as entries, help. What a command's `run` is given."""

from core.cli.context import CommandContext

__all__ = ["CommandContext"]
