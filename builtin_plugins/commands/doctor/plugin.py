"""`engine doctor`, also reached as `engine collect-env`: examines machine, software and plugins."""

from core.api import Entry, hookimpl

TARGET = "builtin_plugins.commands.doctor.command:Doctor"


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command under both names."""
    return [
        Entry("doctor", TARGET, "examine this machine, its software and the plugins"),
        Entry("collect-env", TARGET, "the same as doctor"),
    ]
