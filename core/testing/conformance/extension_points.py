"""Extension points that are no kinds: hooks that return halves of features, options, model names
and hooks of others.

A plugin's module may state what they are tried with: `EXAMPLE_OPTIONS`, values of its options
with which they are on; `EXAMPLE_REQUESTS`, what clients send to an admission extension;
`EXAMPLE_MODELS`, names that it finds models by.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.plugin import PluginRef, Registry
from core.plugin.kinds import Kind

EXTENSION_POINTS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        point.name: point
        for point in (
            Kind(
                "admission_extensions", "admission extension", "admission.AdmissionExtension", "all"
            ),
            Kind(
                "scheduler_extensions",
                "scheduler extension",
                "scheduling.SchedulerExtension",
                "all",
            ),
            Kind("runner_extensions", "runner extension", "workers.RunnerExtension", "all"),
            Kind("options", "option", "Option", "all"),
            Kind("find_model", "finder of models", "ModelSource", "all"),
            Kind("add_hooks", "hook for others", "hookspec", "all"),
        )
    }
)
"""By the name of the hook without `engine_`."""


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """What one plugin brings at one extension point, and how to load it again."""

    plugin: PluginRef
    registry: Registry
    config: EngineConfig
    """With the plugin's `EXAMPLE_OPTIONS`."""
    given: Callable[[], Any]
    """Calls the plugin's hook again and returns its result."""
    examples: Mapping[str, Any] = field(default_factory=dict)
    """What the plugin's module states: its names that begin with `EXAMPLE_`."""

    @property
    def word(self) -> str:
        """What selects the plugin, as after `--plugins`."""
        return self.plugin.name if self.plugin.distribution else self.plugin.target


def extension_points(registry: Registry, ref: PluginRef) -> Iterator[tuple[str, ExtensionPoint]]:
    """Yield each extension point that a plugin implements, by name; of a half only where its hook
    gives one.
    """
    module = sys.modules[f"engine_local_{ref.name}" if ref.is_file else ref.target]
    stated = {name: value for name, value in vars(module).items() if name.startswith("EXAMPLE_")}
    config = config_from_kwargs(stated.get("EXAMPLE_OPTIONS", {}), registry.options())
    implemented = registry.hooks.implemented(ref.name)
    for name, kind in EXTENSION_POINTS.items():
        if kind.hook in implemented:
            point = ExtensionPoint(
                ref, registry, config, _asking(registry, ref, kind.hook, config), stated
            )
            if not name.endswith("_extensions") or point.given():
                yield name, point


def _asking(
    registry: Registry, ref: PluginRef, hook: str, config: EngineConfig
) -> Callable[[], Any]:
    arguments: dict[str, Any] = (
        {"config": config, "registry": registry} if hook.endswith("_extensions") else {}
    )
    arguments |= {"model": "", "config": config} if hook == "engine_find_model" else {}

    def given() -> Any:
        return next(
            answer for owner, answer in registry.hooks.call(hook, **arguments) if owner == ref
        )

    return given
