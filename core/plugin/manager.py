"""Imports the plugins of a plan, and checks and calls their hooks.

pluggy has the specifications, the order and the argument names. Plugins are called one
at a time, so that every result and every error has an owner.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pluggy

from core.errors import PluginError, did_you_mean
from core.logs import RateLimitedLogger
from core.plugin import hookspecs
from core.plugin.blame import Blame
from core.plugin.discovery import PluginRef
from core.plugin.entry import PROJECT
from core.plugin.plan import PluginPlan

log = logging.getLogger(__name__)

PREFIX: Final = "engine_"


class Hooks:
    """The hooks of loaded plugins. Immutable once constructed."""

    def __init__(self, plan: PluginPlan, process: str) -> None:
        self.process: Final = process
        self.fault_log: Final = RateLimitedLogger(log)
        """Exceptions of plugins, counted by plugin."""
        self._manager = _PrefixedManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._plugins = {ref.name: ref for ref in plan.plugins}
        modules = {ref.name: self._import(ref) for ref in plan.plugins}
        for ref in plan.plugins:
            self._add_specifications(ref, modules[ref.name])
        # pluggy calls the last registered first, so plugins are called by name.
        for ref in sorted(plan.plugins, key=lambda ref: ref.name, reverse=True):
            for name, function in _implementations(modules[ref.name]):
                self._check(ref, name, function)
            with self.blame(ref, "cannot be registered"):
                self._manager.register(modules[ref.name], ref.name)
        if third := [str(ref) for ref in plan.plugins if not ref.builtin]:
            level = logging.INFO if process == "main" else logging.DEBUG
            verb = "is" if len(third) == 1 else "are"
            log.log(level, "third-party %s %s on", ", ".join(third), verb)

    def call(self, hook: str, **arguments: Any) -> Iterator[tuple[PluginRef, Any]]:
        """Yield (plugin, result) of one hook by plugin name, lazily: a caller may stop."""
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        for implementation in reversed(caller.get_hookimpls()):
            ref = self._plugins[implementation.plugin_name]
            with self.blame(ref, f"failed in hook {hook}"):
                values = [arguments[name] for name in implementation.argnames]
                result = implementation.function(*values)
            yield ref, result

    def implemented(self, plugin: str) -> list[str]:
        """Return the names of the hooks that a plugin implements."""
        callers = self._manager.get_hookcallers(self._manager.get_plugin(plugin)) or ()
        return sorted(caller.name for caller in callers)

    def blame(self, ref: PluginRef, action: str) -> Blame:
        """Return the context manager for calls into this plugin's code."""
        return Blame(ref, action, self.process, self.fault_log)

    def _import(self, ref: PluginRef) -> ModuleType:
        with self.blame(ref, "cannot be imported"):
            return _import_file(ref) if ref.is_file else importlib.import_module(ref.target)

    def _add_specifications(self, ref: PluginRef, module: ModuleType) -> None:
        function = getattr(module, "engine_add_hooks", None)
        if not callable(function):
            return
        with self.blame(ref, "failed in hook engine_add_hooks"):
            for specifications in function():
                self._manager.add_hookspecs(specifications)
                for name, value in vars(specifications).items():
                    if hasattr(value, f"{PROJECT}_spec") and not name.startswith(PREFIX):
                        raise PluginError(
                            f"{ref} adds a hook {name!r}; call it {PREFIX}{name}. "
                            f"{ref.disable_hint}"
                        )

    def _check(self, ref: PluginRef, name: str, function: Callable[..., Any]) -> None:
        """Raise `PluginError` for a function that cannot implement any hook."""
        options = getattr(function, f"{PROJECT}_impl", None)
        known = [
            hook
            for hook, caller in vars(self._manager.hook).items()
            if hook.startswith(PREFIX) and caller.spec
        ]
        if name not in known:
            if options is not None and options["optionalhook"]:
                return
            raise PluginError(
                f"{ref} has a hook {name!r} that does not exist{did_you_mean(name, known) or '.'} "
                f"{ref.disable_hint}"
            )
        if options is None:
            raise PluginError(
                f"{ref} defines {name} without @hookimpl, so it would never be called. "
                f"Decorate it (`from core.api import hookimpl`). {ref.disable_hint}"
            )
        if options["wrapper"] or options["hookwrapper"]:
            raise PluginError(
                f"{ref} marks {name} as a wrapper, but hooks are called one plugin at a time and "
                "have nothing to wrap. "
                "Change decisions in engine_resolve, replace an entry by one of higher priority. "
                f"{ref.disable_hint}"
            )
        has = getattr(self._manager.hook, name).spec.argnames
        for argument in inspect.signature(function).parameters:
            if argument not in has:
                raise PluginError(
                    f"{ref}: hook {name} has no argument {argument!r}; it has "
                    f"{', '.join(has) or 'none'}"
                    f"{did_you_mean(argument, has) or '.'} {ref.disable_hint}"
                )


class _PrefixedManager(pluggy.PluginManager):
    """Considers only names with the prefix, which keeps the registration of
    modules fast.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        return super().parse_hookimpl_opts(plugin, name) if name.startswith(PREFIX) else None


def _implementations(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield functions marked as hooks, and the module's own functions with a
    hook's prefix.
    """
    for name, value in vars(module).items():
        if not inspect.isfunction(value) or hasattr(value, f"{PROJECT}_spec"):
            continue
        own = name.startswith(PREFIX) and value.__module__ == module.__name__
        if own or hasattr(value, f"{PROJECT}_impl"):
            yield name, value


def _import_file(ref: PluginRef) -> ModuleType:
    """Run a local file as a module, from the bytes with the hash of
    the plan.
    """
    source = Path(ref.target).read_bytes()
    if hashlib.sha256(source).hexdigest() != ref.sha256:
        raise PluginError(
            f"{ref} has changed since the plugins were selected. Restart the engine to load it as "
            "it is."
        )
    module = ModuleType(f"engine_local_{ref.name}")
    module.__file__ = ref.target
    # dataclasses and pickle look up classes there
    sys.modules[module.__name__] = module
    exec(compile(source, ref.target, "exec"), module.__dict__)
    return module
