"""What surrounds a start: plugins and environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from builtin_plugins.commands.doctor.finding import Finding, judge
from core.api import EngineError, did_you_mean
from core.config.env import CONFIG_FILE, FIELDS

OURS: Final = "ENGINE_"
FOREIGN: Final = "VLLM_"
OTHERS: Final = (
    "CUDA_VISIBLE_DEVICES",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "LD_PRELOAD",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "TMPDIR",
)
"""Variables of libraries that change how the engine behaves."""
SECRET: Final = ("TOKEN", "KEY")


def check_environment(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Variables that count, those that were meant to, and those that have no effect."""
    known = (CONFIG_FILE, *FIELDS)
    counted = [name for name in sorted((*known, *OTHERS)) if environment.get(name)]
    shown = (f"{name}={'***' if name.endswith(SECRET) else environment[name]}" for name in counted)
    yield Finding("ok", "environment", ", ".join(shown) or "no variable is set that counts")
    for name in sorted(environment):
        if name.startswith(OURS) and name not in known:
            hint = did_you_mean(name, known)
            yield Finding(
                "warn", "environment", f"{name} is not read{hint}", f"Known: {', '.join(known)}"
            )
    foreign = sorted(name for name in environment if name.startswith(FOREIGN))
    if foreign:
        yield Finding(
            "warn",
            "environment",
            f"without effect: {', '.join(foreign)}",
            "Use flags, or keys of a --config file",
        )


def check_plugins(context: Any) -> Iterator[Finding]:
    """Load all plugins; where that fails, each alone, so that every broken one is named."""
    try:
        plan = context.plan
    except EngineError as error:
        yield Finding("fail", "plugins", str(error))
        return
    third = [str(ref) for ref in plan.plugins if not ref.builtin]
    text = f"{len(plan.plugins)} on, of others: {', '.join(third) or 'none'}"
    yield judge(
        "plugins",
        text + (f"; absent: {', '.join(plan.absent)}" if plan.absent else ""),
        warn=bool(plan.absent),
        advice="This installation lacks builtins; install it again if that was not meant",
    )
    whole = _fault(context)
    if whole:
        alone = [_fault(_alone(context, ref)) for ref in plan.plugins]
        for fault in filter(None, alone) if any(alone) else [whole]:
            yield Finding("fail", "plugins", fault)


def _fault(context: Any) -> str:
    """Return why the plugins of a context cannot be loaded; empty when they can."""
    try:
        _ = context.registry
    except EngineError as error:
        return str(error)
    return ""


def _alone(context: Any, ref: Any) -> Any:
    """Return a context with one plugin and the kernel's."""
    name = ref.name if ref.distribution else ref.target
    selection = replace(context.config.plugins, plugins=["none", name], plugins_lock=None)
    return replace(context, config=replace(context.config, plugins=selection), loaded=None)
