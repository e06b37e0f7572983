"""`engine doctor`, also named `engine collect-env`: checks machine, software and plugins."""

from core.api import Entry, hookimpl

TARGET = "builtin_plugins.commands.doctor.command:Doctor"


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the entry under both names."""
    return [
        Entry("doctor", TARGET, "examine this machine, its software and the plugins"),
        Entry("collect-env", TARGET, "the same as doctor"),
    ]
