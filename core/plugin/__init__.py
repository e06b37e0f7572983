"""The plugin system: discovery without imports, a frozen plan, a sealed registry, blame on every boundary."""

from core.plugin.kinds import KINDS, Kind
from core.plugin.plan import PluginPlan, make_plan
from core.plugin.refs import PluginRef
from core.plugin.registry import Candidate, Registered, Registry, load_plan

__all__ = [
    "KINDS",
    "Candidate",
    "Kind",
    "PluginPlan",
    "PluginRef",
    "Registered",
    "Registry",
    "load_plan",
    "make_plan",
]
