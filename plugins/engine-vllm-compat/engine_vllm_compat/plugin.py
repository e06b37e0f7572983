"""Entries for plugins written for vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.api import Entry, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig


@hookimpl
def engine_tool_parsers() -> list[Entry]:
    """Return the tool parsers that vLLM's general plugins registered."""
    from engine_vllm_compat.parsers import tool_formats  # lazy: loads vLLM's plugins

    return [Entry(name, form, "a tool parser written for vLLM") for name, form in tool_formats()]


@hookimpl
def engine_reasoning_parsers() -> list[Entry]:
    """Return the reasoning parsers that vLLM's general plugins registered."""
    from engine_vllm_compat.parsers import reasoning_formats  # lazy: as above

    return [
        Entry(name, form, "a reasoning parser written for vLLM")
        for name, form in reasoning_formats()
    ]


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return one entry per entry point; classes are imported when an engine starts."""
    from engine_vllm_compat.discovery import LOGITS_PROCESSORS, points

    target = "engine_vllm_compat.processors"
    summary = "a logits processor written for vLLM"
    return [
        Entry(f"vllm_{point.name}", f"{target}:{point.name}", summary)
        for point in points(LOGITS_PROCESSORS)
    ]


@hookimpl(optionalhook=True)  # hook of the plugin `lora`
def engine_lora_resolvers(config: EngineConfig) -> list[Any]:
    """Return the LoRA resolvers that vLLM's general plugins registered."""
    from engine_vllm_compat.discovery import registered  # lazy: as above

    return list(registered().resolvers.values())
