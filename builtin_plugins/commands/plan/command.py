"""The command `engine plan`: estimates memory and suggests flags when it does not suffice."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.plan.report import as_json, as_lines
from builtin_plugins.commands.plan.speed import estimate_speed
from core.api import EngineConfig, ModelError

if TYPE_CHECKING:
    import argparse

    import torch

    from core import MemoryPlan
    from core.api import CommandContext
    from core.api.plugins import LoadedRegistry


DUMMY: Final = "dummy"
HUB_PREFIX: Final = "hub id "
"""Prefix of `ModelSource.origin` for hub models."""
REDUCED_DTYPES: Final = {"float32": "bfloat16"}


class Plan:
    """Reports the memory that serving a model takes, whether it is available, and its speed."""

    help = "Check whether a model fits, and estimate its speed: weights, KV cache, requests."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model and the output format."""
        parser.add_argument("model", nargs="?", help="local folder or hub id, as for serve")
        parser.add_argument(
            "--json", action="store_true", help="print JSON; sizes in bytes, per rank where lists"
        )

    def run(self, context: CommandContext) -> int:
        """Print the plan; return 1 when the model does not fit."""
        plan = make_plan(context.config, context.registry)
        ways = remedies(plan, context.config, context.registry)
        speed = None if plan.short_bytes else estimate_speed(plan)
        if context.args.json:
            json.dump(as_json(plan, ways, speed), sys.stdout, indent=2)
            print()
        else:
            print("\n".join(as_lines(plan, ways, speed)))
        return 1 if plan.short_bytes else 0


def make_plan(config: EngineConfig, registry: LoadedRegistry) -> MemoryPlan:
    """Return the memory plan. For a hub model only config and headers are downloaded."""
    from builtin_plugins.commands.plan.memory_plan import (
        memory_plan,  # lazy: torch is slow to import
    )

    if Path(config.model.model).expanduser().is_dir():
        return memory_plan(config, registry)
    # dummy weights are not downloaded
    small = replace(config, load=replace(config.load, load_format=DUMMY))
    return memory_plan(
        small,
        registry,
        headers=lambda source: (
            hub_headers(source.name, config) if source.origin.startswith(HUB_PREFIX) else None
        ),
    )


def remedies(plan: MemoryPlan, config: EngineConfig, registry: LoadedRegistry) -> list[str]:
    """Return flags that make the model fit, or give a fitting one its full context.

    Each flag suffices alone.
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
    """Yield flags that may help, with the resulting configuration."""
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
    dtype = REDUCED_DTYPES.get(plan.config.model.dtype)
    if plan.short_bytes and dtype is not None:
        yield f"--dtype {dtype}", _with(config, "model", dtype=dtype)


def _with(config: EngineConfig, section: str, **values: Any) -> EngineConfig:
    changed: dict[str, Any] = {section: replace(getattr(config, section), **values)}
    return replace(config, **changed)


def hub_headers(name: str, config: EngineConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, meta tensor) for each tensor of a hub repository.

    Downloads a few kilobytes of headers. Raises `ModelError` when that fails.
    """
    import torch  # lazy: slow to import
    from huggingface_hub import get_safetensors_metadata  # lazy: slow to import

    dtypes = {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
    }
    try:
        metadata = get_safetensors_metadata(
            name, revision=config.model.revision, token=config.model.hf_token
        )
    except Exception as error:
        raise ModelError(
            f"weight headers of {name}: download failed: {error}. Retry, or use a local folder."
        ) from error
    for file in metadata.files_metadata.values():
        for tensor, facts in file.tensors.items():
            start, end = facts.data_offsets
            count = math.prod(facts.shape)
            integer = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(
                (end - start) // max(count, 1), torch.int64
            )
            yield (
                tensor,
                torch.empty(facts.shape, dtype=dtypes.get(facts.dtype, integer), device="meta"),
            )
