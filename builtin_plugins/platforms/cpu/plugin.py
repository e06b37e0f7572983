"""The CPU of this machine."""

from typing import Any

from core.api import Entry, Option, Registry, hookimpl


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


@hookimpl
def engine_admission_extensions(registry: Registry) -> list[Any]:
    """Share the number of usable cores, which bounds the threads that read prompts."""
    from builtin_plugins.platforms.machine import usable_cores  # lazy: quick start

    registry.shared("usable_cores", usable_cores)
    return []
