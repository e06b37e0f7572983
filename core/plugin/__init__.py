"""The plugin system: discovery without imports, a frozen plan, an immutable
registry, blame.
"""

from core.plugin.discovery import PluginRef
from core.plugin.kinds import KINDS
from core.plugin.plan import PluginPlan, make_plan
from core.plugin.registry import Registered, Registry, load_named, load_plan

__all__ = [
    "KINDS",
    "PluginPlan",
    "PluginRef",
    "Registered",
    "Registry",
    "load_named",
    "load_plan",
    "make_plan",
]
