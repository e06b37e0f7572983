"""Finds plugins in vLLM's groups of entry points and runs the general ones, once in each process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from engine_vllm_compat.provided import Provider
from engine_vllm_compat.registries import Registries

log = logging.getLogger(__name__)

GENERAL: Final = "vllm.general_plugins"
LOGITS_PROCESSORS: Final = "vllm.logits_processors"
UNMET: Final = {
    "vllm.platform_plugins": "a platform of vLLM's is made of its workers and kernels",
    "vllm.io_processor_plugins": "they read requests of vLLM's own pooling engine",
    "vllm.stat_logger_plugins": "they read vLLM's own statistics; write a metric sink",
}
"""Groups whose contracts cannot be met, and why."""


def points(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a group in the order of their names."""
    yield from sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


@cache
def registered() -> Registries:
    """Return what this process's general plugins have registered; each is run once, and one that
    fails is left out by name.
    """
    provider = provide()
    for point in points(GENERAL):
        try:
            point.load()()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the others go on
            leave_out(point, f"{type(error).__name__}: {error}")
    for group, why in UNMET.items():
        for point in points(group):
            leave_out(point, f"{group} is not served: {why}")
    return provider.registries


@cache
def provide() -> Provider:
    """Let `import vllm` give what plugins need, in front of whatever else is called so."""
    provider = Provider()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.meta_path.insert(0, provider)
    return provider


def leave_out(point: EntryPoint, why: str) -> None:
    """Say which plugin is left out, and what can be done."""
    dist = (
        f"{point.dist.name} {point.dist.version}" if point.dist is not None else "no distribution"
    )
    log.warning(
        "vLLM's plugin %r (%s) is left out: %s. Uninstall it, or switch all of them off with "
        "--plugins no:vllm_compat.",
        point.name,
        dist,
        why,
    )
