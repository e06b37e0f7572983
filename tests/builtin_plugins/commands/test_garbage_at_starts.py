"""How often garbage is collected while `engine serve` starts."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from builtin_plugins.clients.rare_collections import START_THRESHOLD
from builtin_plugins.commands.serve.serving import serve


def test_garbage_is_collected_seldom_during_the_start_only() -> None:
    thresholds = []

    def start(config: Any, registry: Any, meanwhile: Any) -> Any:
        thresholds.append(gc.get_threshold())
        meanwhile()
        return SimpleNamespace(config=config, shutdown=lambda: None)

    def run() -> int:
        thresholds.append(gc.get_threshold())
        return 0

    registry: Any = SimpleNamespace(
        choose=lambda kind: "http",
        entries=lambda kind: [],
        load=lambda registered: lambda engine, config, groups: SimpleNamespace(run=run),
        blame=lambda registered: nullcontext(),
    )
    before = gc.get_threshold()
    frontend = SimpleNamespace(from_config=start)
    assert serve(SimpleNamespace(options={}), registry, None, frontend, checks=True) == 0
    assert thresholds == [(START_THRESHOLD, *before[1:]), before]
