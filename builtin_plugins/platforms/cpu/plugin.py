"""The CPU of this machine."""

from core.api import Entry, hookimpl


@hookimpl
def engine_platforms() -> list[Entry]:
    """Return the platform."""
    return [
        Entry("cpu", "builtin_plugins.platforms.cpu.platform:CpuPlatform", "This machine's CPU")
    ]
