"""The CPU of this machine."""

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Return the option of the CPU kernels."""
    text = "Instruction set of the CPU kernels, instead of the processor's best (for measurements)."
    return [Option("isa", str | None, None, text)]


@hookimpl
def engine_platforms() -> list[Entry]:
    """Return the platform."""
    return [
        Entry("cpu", "builtin_plugins.platforms.cpu.platform:CpuPlatform", "This machine's CPU")
    ]
