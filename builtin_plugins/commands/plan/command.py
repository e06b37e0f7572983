"""The command: plans once, looks for what would make the model fit where it does not, and prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.plan.hub import hub_headers
from builtin_plugins.commands.plan.report import as_json, as_lines
from core.api import EngineConfig

if TYPE_CHECKING:
    import argparse

    from core import MemoryPlan

DUMMY: Final = "dummy"
HUB: Final = "hub id "
"""How the source of a hub's model says where it is from."""
HALF: Final = {"float32": "bfloat16"}


class Plan:
    """Says what memory serving the model would take, and whether that is there."""

    help = "Say whether a model will fit: weights, KV cache, context, requests at once. Reads no weight."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model and the output format."""
        parser.add_argument("model", nargs="?", help="local folder or hub id, as for serve")
        parser.add_argument(
            "--json", action="store_true", help="print JSON; sizes in bytes, per rank where lists"
        )

    def run(self, context: Any) -> int:
        """Print the plan; return 1 when the model does not fit."""
        plan = make_plan(context.config, context.registry)
        ways = remedies(plan, context.config, context.registry)
        if context.args.json:
            json.dump(as_json(plan, ways), sys.stdout, indent=2)
            print()
        else:
            print("\n".join(as_lines(plan, ways)))
        return 1 if plan.short_bytes else 0


def make_plan(config: EngineConfig, registry: Any) -> MemoryPlan:
    """Return the plan; of a model on the hub, config and headers are fetched."""
    from core import memory_plan  # lazy: torch is slow to import

    if Path(config.model.model).expanduser().is_dir():
        return memory_plan(config, registry)
    small = replace(
        config, load=replace(config.load, load_format=DUMMY)
    )  # weights are not fetched for dummy ones
    return memory_plan(
        small,
        registry,
        headers=lambda source: (
            hub_headers(source.name, config) if source.origin.startswith(HUB) else None
        ),
    )


def remedies(plan: MemoryPlan, config: EngineConfig, registry: Any) -> list[str]:
    """Return flags of which each one alone makes the model fit, or for one that fits, gives it its
    whole context.
    """
    found = []
    for flags, changed in _candidates(plan, config):
        other = make_plan(changed, registry)
        if not other.short_bytes and (
            plan.short_bytes or other.context_length > plan.context_length
        ):
            found.append(
                f"--max-model-len {other.context_length}" if flags == "--max-model-len" else flags
            )
    return found


def _candidates(plan: MemoryPlan, config: EngineConfig) -> Iterator[tuple[str, EngineConfig]]:
    """Yield flags that may help, with the configuration they make."""
    stated = plan.source.max_model_len
    if plan.short_bytes:
        yield "--max-model-len", _with(config, "model", max_model_len=None)
        excess = plan.short_bytes * plan.layout_bytes // max(1, *plan.kv_bytes)
        size = (
            plan.least_kv_bytes(plan.context_length)
            if plan.obstacle
            else plan.layout_bytes - excess
        )
    elif plan.context_length < stated and config.model.max_model_len in (None, -1):
        size = plan.least_kv_bytes(stated)
    else:
        return
    if size > 0:
        changed = _with(config, "cache", kv_cache_memory_bytes=size, num_gpu_blocks_override=None)
        yield f"--kv-cache-memory-bytes {size}", changed
    dtype = HALF.get(plan.config.model.dtype)
    if plan.short_bytes and dtype is not None:
        yield f"--dtype {dtype}", _with(config, "model", dtype=dtype)


def _with(config: EngineConfig, section: str, **values: Any) -> EngineConfig:
    changed: dict[str, Any] = {section: replace(getattr(config, section), **values)}
    return replace(config, **changed)
