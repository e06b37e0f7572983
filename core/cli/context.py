"""What a command is run with."""

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
    """What a command is run with. A positional argument called `model` has gone into the
    configuration already.

    For commands that take no engine options the configuration holds the start-up flags only, and
    plugins are not loaded until `registry` is read, so that a broken one can be examined.
    """

    args: argparse.Namespace
    """The command's own arguments."""
    config: EngineConfig
    provenance: Provenance
    table: FieldTable
    """Everything that can be configured."""
    loaded: Registry | None = field(default=None, repr=False)

    @property
    def plan(self) -> PluginPlan:
        """The selected plugins, found but not imported."""
        if self.loaded is not None:
            return self.loaded.plan
        return make_plan(self.config.plugins.plugins, self.config.plugins.plugins_lock)

    @property
    def registry(self) -> Registry:
        """The loaded plugins. Raises `PluginError` for a broken one."""
        if self.loaded is None:
            self.loaded = load_plan(self.plan)
        return self.loaded
