"""`engine serve`: the parent process and the API process below it."""

from builtin_plugins.commands.serve.plugin import (
    engine_check_settings,
    engine_commands,
    engine_options,
)

__all__ = ["engine_check_settings", "engine_commands", "engine_options"]
