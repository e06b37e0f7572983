"""`CommandContext`: the argument of a command's `run`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.config import EngineConfig
from core.config.build import Provenance
from core.config.fields import FieldTable
from core.plugin import load_plan, make_plan

if TYPE_CHECKING:
    from core.plugin import PluginPlan, Registry


@dataclass(slots=True)
class CommandContext:
    """The argument of a command's `run`. A positional `model` is part of the configuration.

    For commands without engine options the configuration has the start-up flags only, and plugins
    load when `registry` is first read, so that broken ones can be examined.
    """

    args: argparse.Namespace
    """The command's own arguments."""
    config: EngineConfig
    provenance: Provenance
    table: FieldTable
    """The field table."""
    loaded: Registry | None = field(default=None, repr=False)

    @property
    def plan(self) -> PluginPlan:
        """The selected plugins, found but not imported."""
        if self.loaded is not None:
            return self.loaded.plan
        return make_plan(self.config.plugins.plugins, self.config.plugins.plugins_lock)

    @property
    def registry(self) -> Registry:
        """The loaded plugins. Raises `PluginError` for a broken plugin."""
        if self.loaded is None:
            self.loaded = load_plan(self.plan)
        return self.loaded
