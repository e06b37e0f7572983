"""The registry: everything that loaded plugins provide, collected once per
process.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from core.config import EngineConfig
from core.config.fields import Option
from core.contracts.admission import AdmissionContext, AdmissionExtension
from core.contracts.models import ModelSource
from core.contracts.scheduling import SchedulerExtension
from core.contracts.workers import RunnerExtension
from core.errors import ConfigError, PluginError, did_you_mean
from core.plugin.blame import Blame
from core.plugin.call_timer import CallTimer
from core.plugin.discovery import PluginRef
from core.plugin.entry import API_VERSION, Entry, construct
from core.plugin.facts import missing_requirement, why_not
from core.plugin.kinds import KINDS
from core.plugin.manager import Hooks
from core.plugin.missing import missing_entry
from core.plugin.plan import PluginPlan, make_plan, refuse_difference

log = logging.getLogger(__name__)

MAIN: Final = "main"
"""Name of the process that makes the plan."""
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry with its plugin."""

    kind: str
    entry: Entry
    plugin: PluginRef

    @property
    def label(self) -> str:
        """`kind:name`, as in `Entry.conflicts`."""
        return f"{self.kind}:{self.entry.name}"

    def __str__(self) -> str:
        return f"{KINDS[self.kind].noun} {self.entry.name!r} of {self.plugin}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry, and whether it fits some facts."""

    registered: Registered
    reason: str
    """Why it does not fit; empty if it fits."""


def load_plan(plan: PluginPlan, process: str = MAIN) -> Registry:
    """Import the plugins of a plan and return their registry.

    Raises `PluginError` naming a plugin that is broken, breaks a contract, or differs
    from the plan.
    """
    if process != MAIN:
        refuse_difference(plan, process)
    return Registry(plan, Hooks(plan, process))


def load_named(config: EngineConfig, registry: Registry) -> tuple[EngineConfig, Registry]:
    """Return both with the plugins that values of options name."""
    plugins = config.plugins
    plan = registry.plan
    for option in (option for _, option in registry.options() if option.names_plugin):
        if value := config.options.get(option.name):
            plugins = replace(plugins, plugins=[*plugins.plugins, f"+{value}"])
            try:
                plan = make_plan(plugins.plugins, plugins.plugins_lock)
            # name the option's flag instead of --plugins
            except ConfigError as error:
                flag = f"--{option.name.replace('_', '-')}"
                message = str(error).replace("--plugins", flag, 1).replace("'+", "'", 1)
                raise ConfigError(message) from error
    if plan is registry.plan:
        return config, registry
    return replace(config, plugins=plugins), load_plan(plan)


class Registry:
    """Entries by kind, options, and lifecycle hooks. Immutable once constructed."""

    def __init__(self, plan: PluginPlan, hooks: Hooks) -> None:
        self.plan: Final = plan
        self.hooks: Final = hooks
        self.withheld: list[Registered] = []
        """Third-party entries that are off until the user names their plugin."""
        self._used: Final[dict[str, Registered]] = {}
        self._timer: Final = CallTimer()
        self._shared: Final[dict[str, Any]] = {
            "faults": hooks.fault_log.counted,
            "call_timer": self._timer,
        }
        self._kinds: Final = MappingProxyType({kind: self._collect(kind) for kind in KINDS})
        self._options: Final = tuple(
            (ref.name, option)
            for ref, found in hooks.call("engine_options")
            for option in _as_list(ref, "engine_options", found, Option)
        )

    def _collect(self, kind: str) -> tuple[Registered, ...]:
        found: dict[str, Registered] = {}
        for ref, entries in self.hooks.call(KINDS[kind].hook):
            for entry in _as_list(ref, KINDS[kind].hook, entries, Entry):
                registered = Registered(kind, entry, ref)
                _check_api(registered)
                if KINDS[kind].opt_in_third_party and not (ref.builtin or ref.named):
                    self.withheld.append(registered)
                    log.info(
                        "%s is off until the plugin is named: --plugins +%s", registered, ref.name
                    )
                    continue
                other = found.get(entry.name)
                if other is None or entry.replaces == other.plugin.name:
                    found[entry.name] = registered
                elif other.entry.replaces != ref.name:
                    raise PluginError(
                        f"{other} and {registered} have one name. Leave one of the plugins out, "
                        f"for example with --plugins no:{other.plugin.name}."
                    )
        return tuple(found[name] for name in sorted(found))

    # --- entries

    def entries(self, kind: str) -> tuple[Registered, ...]:
        """Return all entries of a kind, by name."""
        return self._kinds[kind]

    def rank(self, kind: str, facts: Mapping[str, Any] = MappingProxyType({})) -> list[Candidate]:
        """Return all entries of a kind by priority, then name, whether they fit or not."""
        ordered = sorted(self.entries(kind), key=lambda r: (-r.entry.priority, r.entry.name))
        return [Candidate(each, why_not(each.entry, facts) or "") for each in ordered]

    def choose(
        self, kind: str, name: str = AUTO, facts: Mapping[str, Any] = MappingProxyType({})
    ) -> Registered:
        """Return the entry with this name, or the best that fits for "auto".

        Raises `ConfigError` with the available entries and why they do not fit.
        """
        candidates = self.rank(kind, facts)
        named = [each for each in candidates if name in (AUTO, each.registered.entry.name)]
        for candidate in named:
            if not candidate.reason:
                return candidate.registered
        missing = "" if named else missing_entry(self, kind, name)
        raise _no_entry(kind, name, candidates, named, missing, self._more_to_load(kind))

    def load(self, registered: Registered, *, probe: bool = False) -> Any:
        """Import the target of an entry. Raises `PluginError` naming its plugin.

        With `probe` the entry does not count as in use.
        """
        entry = registered.entry
        if not probe:
            self._used[registered.label] = registered
        if (missing := missing_requirement(entry)) is not None:
            raise PluginError(f"{registered} {missing}.")
        if not isinstance(entry.target, str):
            return entry.target
        module, _, attribute = entry.target.partition(":")
        action = f"failed while entry {registered.label} was imported from {entry.target}"
        with self.hooks.blame(registered.plugin, action):
            found: Any = importlib.import_module(module)
            for name in attribute.split("."):
                found = getattr(found, name)
        return found

    def make(
        self, registered: Registered, *arguments: Any
    ) -> tuple[Any, Callable[[Exception, str | None], str]]:
        """Construct the target of an entry with as many of the arguments as
        it takes.

        Returns it with a function that maps an error in a request to the client's
        message.
        """
        with self.blame(registered) as blame:
            made = construct(self.load(registered), *arguments)
            timed = self._timer.wrap(registered.plugin.name, made, blame)
        return timed, blame.client_message

    def blame(self, registered: Registered, request: str | None = None) -> Blame:
        """Return a context manager (or decorator) that attributes exceptions to the plugin."""
        what = registered.label if request is None else f"{registered.label} in request {request!r}"
        return self.hooks.blame(registered.plugin, f"failed in entry {what}")

    def in_use(self, kind: str) -> list[Registered]:
        """Return the entries of a kind that are in use, in the order of their
        loading.
        """
        return [registered for registered in self._used.values() if registered.kind == kind]

    def check_combination(self, chosen: Iterable[Registered] | None = None) -> None:
        """Raise `ConfigError` if entries exclude each other or lack a needed capability.

        Default: all entries in use.
        """
        available = [each for kind in KINDS for each in self.entries(kind)]
        _refuse_conflicts(list(self._used.values() if chosen is None else chosen), available)

    def _more_to_load(self, kind: str) -> str:
        """Return sentences about entries that are not loaded."""
        parts = [
            f"{each.entry.name!r} of {each.plugin} is off until named "
            f"(--plugins +{each.plugin.name})"
            for each in self.withheld
            if each.kind == kind
        ]
        if self.plan.absent:
            parts.append(f"builtins absent from this installation: {', '.join(self.plan.absent)}")
        return "".join(f". {part[0].upper()}{part[1:]}" for part in parts)

    # --- hooks

    def call_hook(self, hook: str, **arguments: Any) -> list[tuple[PluginRef, Any]]:
        """Return the answer of each plugin that implements a hook, by plugin
        name.

        For hooks that plugins add.
        """
        return list(self.hooks.call(hook, **arguments))

    def options(self) -> tuple[tuple[str, Option], ...]:
        """Return the options of plugins, each with its plugin's name."""
        return self._options

    def find_model(self, model: str, config: EngineConfig) -> ModelSource | None:
        """Return the model source of the first plugin that recognises the
        name, or None.
        """
        for ref, source in self.hooks.call("engine_find_model", model=model, config=config):
            if isinstance(source, ModelSource):
                return source
            if isinstance(source, str) and source != model:
                return self.find_model(source, config)
            if source is not None:
                expected = "a ModelSource, another name or None"
                raise _wrong_answer(ref, "engine_find_model", expected, source)
        return None

    def resolve(self, decisions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the decisions that plugins change. Raises `ConfigError` if two disagree."""
        changes: dict[str, Any] = {}
        owners: dict[str, PluginRef] = {}
        read_only = MappingProxyType(dict(decisions))
        for ref, answer in self.hooks.call("engine_resolve", decisions=read_only):
            if not isinstance(answer or {}, Mapping):
                raise _wrong_answer(ref, "engine_resolve", "a mapping or None", answer)
            for name, value in (answer or {}).items():
                if name in changes and changes[name] != value:
                    raise ConfigError(
                        f"{owners[name]} wants {name} to be {changes[name]!r}, {ref} wants "
                        f"{value!r}. "
                        f"Leave one of them out, for example with --plugins no:{ref.name}."
                    )
                if name not in changes:
                    log.info("%s changes %s from %r to %r", ref, name, decisions.get(name), value)
                changes[name] = value
                owners[name] = ref
        return changes

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the object of this name, made on first use: state shared by
        a feature's halves.
        """
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def admission_extensions(
        self, config: EngineConfig, context: AdmissionContext
    ) -> tuple[tuple[Blame, AdmissionExtension], ...]:
        """Return the attached admission halves of enabled features, with the
        plugins' blame.
        """
        pairs = self._halves("admission", config)
        for blame, extension in pairs:
            if hasattr(extension, "attach"):
                with blame:
                    extension.attach(context)
        return pairs

    def scheduler_extensions(self, config: EngineConfig) -> tuple[SchedulerExtension, ...]:
        """Return the scheduler halves of enabled features."""
        return tuple(extension for _, extension in self._halves("scheduler", config))

    def runner_extensions(self, config: EngineConfig) -> tuple[tuple[Blame, RunnerExtension], ...]:
        """Return the worker halves of enabled features, with the plugins'
        blame.
        """
        return self._halves("runner", config)

    def _halves(self, half: str, config: EngineConfig) -> tuple[tuple[Blame, Any], ...]:
        hook = f"engine_{half}_extensions"
        halves = []
        for ref, found in self.hooks.call(hook, config=config, registry=self):
            for extension in _as_list(ref, hook, found):
                blame = self.hooks.blame(ref, f"failed in its {half} extension")
                halves.append((blame, self._timer.wrap(ref.name, extension, blame)))
        return tuple(halves)

    def process_started(self, process: str) -> None:
        """Run the hook for a process that has loaded its plugins."""
        for _ in self.hooks.call("engine_process_start", process=process):
            pass


def _no_entry(
    kind: str,
    name: str,
    candidates: Sequence[Candidate],
    named: Sequence[Candidate],
    missing: str,
    more: str,
) -> ConfigError:
    """Return the error of a choice without a fitting entry."""
    noun = KINDS[kind].noun
    if not named:
        names = sorted(each.registered.entry.name for each in candidates)
        lack = f"no {noun} is loaded" if name == AUTO else f"unknown {noun} {name!r}"
        listed = ", ".join(names) or "none"
        if missing:
            return ConfigError(f"{noun} {name!r} is {missing}; available: {listed}{more}")
        return ConfigError(f"{lack}; available: {listed}{did_you_mean(name, names)}{more}")
    reasons = "; ".join(
        f"{each.registered.entry.name!r} of {each.registered.plugin} {each.reason}"
        for each in named
    )
    fitting = [each.registered.entry.name for each in candidates if not each.reason]
    hint = f". What fits: {', '.join(fitting)}" if fitting else ""
    return ConfigError(f"no {noun} can be used here: {reasons}{hint}{more}")


def _refuse_conflicts(chosen: Sequence[Registered], available: Sequence[Registered]) -> None:
    """Raise `ConfigError` if chosen entries exclude each other or lack a capability."""
    for one in chosen:
        for other in chosen:
            clash = one.entry.conflicts & {other.label, *other.entry.gives}
            if other is not one and clash:
                raise ConfigError(
                    f"{one} cannot be combined with {other} ({min(clash)}). "
                    "Choose only one of them."
                )
        missing = one.entry.needs.difference(*(other.entry.gives for other in chosen))
        if missing:
            need = min(missing)
            givers = [str(each) for each in available if need in each.entry.gives]
            hint = f"choose {' or '.join(givers)}" if givers else "no loaded plugin gives it"
            raise ConfigError(f"{one} needs {need!r}, which nothing chosen gives; {hint}.")


def _as_list(ref: PluginRef, hook: str, found: Any, item_type: type[Any] = object) -> list[Any]:
    """Return a hook's answer as a list. Raises `PluginError` for anything else."""
    is_list = isinstance(found, (list, tuple))
    if not is_list or not all(isinstance(item, item_type) for item in found):
        expected = "a list"
        if item_type is not object:
            expected = f"a list of {item_type.__name__} objects"
        raise _wrong_answer(ref, hook, expected, found)
    return list(found)


def _wrong_answer(ref: PluginRef, hook: str, expected: str, found: Any) -> PluginError:
    return PluginError(
        f"{ref} must return {expected} from its hook {hook}, not {found!r:.200}. {ref.disable_hint}"
    )


def _check_api(registered: Registered) -> None:
    """Raise `PluginError` for an entry of an unsupported version of the
    contracts.
    """
    api = registered.entry.api
    written = f"{registered} is written for version {api} of the contracts"
    if API_VERSION - 1 <= api <= API_VERSION:
        if api < API_VERSION:
            log.warning("%s and will be refused by the next engine", written)
        return
    if api > API_VERSION:
        action = ". Upgrade the engine"
    else:
        action = f" and still takes {API_VERSION - 1}. Upgrade the plugin"
    raise PluginError(
        f"{written}, this engine has {API_VERSION}{action}. {registered.plugin.disable_hint}"
    )
