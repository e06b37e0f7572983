"""Discovery, selection and loading of plugins, for commands that examine them."""

from core.plugin.discovery import CORE, PluginRef, discover, is_absent, module_file
from core.plugin.entry import construct
from core.plugin.facts import format_fact
from core.plugin.file_hashes import files_of
from core.plugin.kinds import KINDS, USES, Kind
from core.plugin.plan import PluginPlan, make_plan
from core.plugin.registry import Registered, load_plan
from core.plugin.registry import Registry as LoadedRegistry
from core.plugin.selection import NONE, parse_selection

__all__ = [
    "CORE",
    "KINDS",
    "NONE",
    "USES",
    "Kind",
    "LoadedRegistry",
    "PluginPlan",
    "PluginRef",
    "Registered",
    "construct",
    "discover",
    "files_of",
    "format_fact",
    "is_absent",
    "load_plan",
    "make_plan",
    "module_file",
    "parse_selection",
]
