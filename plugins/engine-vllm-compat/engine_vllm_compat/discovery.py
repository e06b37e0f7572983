"""Finds plugins in vLLM's entry point groups; runs the general ones once per process."""

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
UNSUPPORTED: Final = {
    "vllm.platform_plugins": "vLLM platforms consist of its workers and kernels",
    "vllm.io_processor_plugins": "they use requests of vLLM's pooling engine",
    "vllm.stat_logger_plugins": "they use vLLM's statistics; write a metric sink",
}
"""Unsupported groups and the reason."""


def points(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a group, sorted by name."""
    yield from sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


@cache
def registered() -> Registries:
    """Return the registrations of the general plugins.

    Each plugin runs once. A failing plugin is skipped with a warning.
    """
    provider = provide()
    for point in points(GENERAL):
        try:
            point.load()()
        except Exception as error:  # noqa: BLE001 - one plugin must not stop the others
            log_skipped(point, f"{type(error).__name__}: {error}")
    for group, why in UNSUPPORTED.items():
        for point in points(group):
            log_skipped(point, f"{group} is not served: {why}")
    return provider.registries


@cache
def provide() -> Provider:
    """Install the provider of `vllm` modules, ahead of an installed vLLM."""
    provider = Provider()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.meta_path.insert(0, provider)
    return provider


def log_skipped(point: EntryPoint, why: str) -> None:
    """Log a skipped plugin and the remedy."""
    dist = (
        f"{point.dist.name} {point.dist.version}" if point.dist is not None else "no distribution"
    )
    log.warning(
        "vLLM's plugin %r (%s) is skipped: %s. Uninstall it, or disable all of them with "
        "--plugins no:vllm_compat.",
        point.name,
        dist,
        why,
    )
