"""Everything loaded plugins bring, collected once: the kernel takes plain objects out and never
asks in a step.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from core.config import EngineConfig
from core.config.fields import Option
from core.contracts import (
    AdmissionExtension,
    Edge,
    ModelSource,
    RunnerExtension,
    SchedulerExtension,
)
from core.contracts.construct import construct
from core.contracts.times import times_of
from core.deprecated import advice
from core.errors import ConfigError, PluginError, did_you_mean
from core.plugin.blame import Blame
from core.plugin.entry import API_VERSION, Entry
from core.plugin.fit import missing_requirement, why_not
from core.plugin.kinds import KINDS
from core.plugin.manager import Hooks
from core.plugin.plan import PluginPlan, make_plan, refuse_difference
from core.plugin.refs import PluginRef

log = logging.getLogger(__name__)

MAIN: Final = "main"
"""Name of the process that made the plan."""
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry with the plugin it came from."""

    kind: str
    entry: Entry
    plugin: PluginRef

    @property
    def label(self) -> str:
        """`kind:name`, as `Entry.conflicts` spells it."""
        return f"{self.kind}:{self.entry.name}"

    def __str__(self) -> str:
        return f"{KINDS[self.kind].noun} {self.entry.name!r} of {self.plugin}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry as judged by some facts."""

    registered: Registered
    reason: str
    """Why it does not fit; empty when it does."""


def load_plan(plan: PluginPlan, process: str = MAIN) -> Registry:
    """Import the plugins of a plan and collect what they bring.

    Raises `PluginError` naming the plugin that is broken, breaks a contract, or is not the planned
    one.
    """
    if process != MAIN:
        refuse_difference(plan, process)
    return Registry(plan, Hooks(plan, process))


def load_named(config: EngineConfig, registry: Registry) -> tuple[EngineConfig, Registry]:
    """Return both with the plugins that the values of options name."""
    plugins = config.plugins
    plan = registry.plan
    for option in (option for _, option in registry.options() if option.names_plugin):
        if value := config.options.get(option.name):
            plugins = replace(plugins, plugins=[*plugins.plugins, f"+{value}"])
            try:
                plan = make_plan(plugins.plugins, plugins.plugins_lock)
            except ConfigError as error:  # its words are about the flag that was not given
                flag = f"--{option.name.replace('_', '-')}"
                raise ConfigError(
                    str(error).replace("--plugins", flag, 1).replace("'+", "'", 1)
                ) from error
    if plan is registry.plan:
        return config, registry
    return replace(config, plugins=plugins), load_plan(plan)


class Registry:
    """Entries by kind, options, and the lifecycle hooks as typed methods. Sealed when constructed."""

    def __init__(self, plan: PluginPlan, hooks: Hooks) -> None:
        self.plan: Final = plan
        self.hooks: Final = hooks
        self.withheld: list[Registered] = []
        """Entries of third parties that count only once the user names the plugin."""
        self._used: Final[dict[str, Registered]] = {}
        self._shared: Final[dict[str, Any]] = {"faults": hooks.seldom.counted}
        self._kinds: Final = MappingProxyType({kind: self._collect(kind) for kind in KINDS})
        self._options: Final = tuple(
            (ref.name, option)
            for ref, found in hooks.call("engine_options")
            for option in _listed(ref, "engine_options", found, Option)
        )

    # --- entries ----------------------------------------------------------------------------------

    def entries(self, kind: str) -> tuple[Registered, ...]:
        """Return all entries of a kind, by name."""
        return self._kinds[kind]

    def rank(self, kind: str, facts: Mapping[str, Any] = MappingProxyType({})) -> list[Candidate]:
        """Return all entries of a kind, best first: by priority, then by name, whether they fit or
        not.
        """
        ordered = sorted(self.entries(kind), key=lambda r: (-r.entry.priority, r.entry.name))
        return [
            Candidate(registered, why_not(registered.entry, facts) or "") for registered in ordered
        ]

    def choose(
        self, kind: str, wanted: str = AUTO, facts: Mapping[str, Any] = MappingProxyType({})
    ) -> Registered:
        """Return the entry called `wanted`, or for "auto" the best that fits.

        Raises `ConfigError` when there is none, listing what there is and why it does not fit.
        """
        noun = KINDS[kind].noun
        candidates = self.rank(kind, facts)
        named = [c for c in candidates if wanted in (AUTO, c.registered.entry.name)]
        if not named:
            names = sorted(c.registered.entry.name for c in candidates)
            lack = f"no {noun} is loaded" if wanted == AUTO else f"unknown {noun} {wanted!r}"
            raise ConfigError(
                f"{lack}; available: {', '.join(names) or 'none'}{did_you_mean(wanted, names)}"
                f"{self._more_to_load(kind)}"
            )
        for candidate in named:
            if not candidate.reason:
                return candidate.registered
        judged = "; ".join(
            f"{c.registered.entry.name!r} of {c.registered.plugin} {c.reason}" for c in named
        )
        others = [c.registered.entry.name for c in candidates if not c.reason]
        hint = f". What fits: {', '.join(others)}" if others else ""
        raise ConfigError(f"no {noun} can be used here: {judged}{hint}{self._more_to_load(kind)}")

    def load(self, registered: Registered, *, probe: bool = False) -> Any:
        """Import what an entry stands for. Raises `PluginError` naming its plugin when that fails.

        An entry that is only probed does not count among those whose combination is checked.
        """
        entry = registered.entry
        ref = registered.plugin
        if not probe:
            self._used[registered.label] = registered
        if (missing := missing_requirement(entry)) is not None:
            raise PluginError(f"{registered} {missing}.")
        if not isinstance(entry.target, str):
            return entry.target
        module, _, attribute = entry.target.partition(":")
        with self.hooks.blame(
            ref, f"failed while entry {registered.label} was imported from {entry.target}"
        ):
            found: Any = importlib.import_module(module)
            for name in attribute.split("."):
                found = getattr(found, name)
        return found

    def make(
        self, registered: Registered, *arguments: Any
    ) -> tuple[Any, Callable[[Exception, str | None], str]]:
        """Construct what an entry stands for, with as many of the arguments as it takes.

        Return it, and what logs an error in a request and says who is to blame.
        """
        with self.blame(registered) as blame:
            made = times_of(self).around(
                registered.plugin.name, construct(self.load(registered), *arguments), blame
            )
        return made, blame.told

    def blame(self, registered: Registered, request: str | None = None) -> Blame:
        """Return a context manager (or decorator) that gives this entry's plugin the blame for what
        is raised in it.
        """
        what = registered.label if request is None else f"{registered.label} in request {request!r}"
        return self.hooks.blame(registered.plugin, f"failed in entry {what}")

    def in_use(self, kind: str) -> list[Registered]:
        """Return the entries of a kind that were loaded to be used, in that order."""
        return [registered for registered in self._used.values() if registered.kind == kind]

    def check_combination(self, chosen: Iterable[Registered] | None = None) -> None:
        """Raise `ConfigError` when chosen entries exclude each other or lack what one of them
        needs.

        Without an argument: all entries in use so far.
        """
        chosen = list(self._used.values() if chosen is None else chosen)
        for one in chosen:
            for other in chosen:
                clash = one.entry.conflicts & {other.label, *other.entry.gives}
                if other is not one and clash:
                    raise ConfigError(
                        f"{one} cannot be combined with {other} ({min(clash)}). Choose only one of "
                        "them."
                    )
            for need in sorted(
                one.entry.needs.difference(*(other.entry.gives for other in chosen))
            ):
                givers = [
                    str(r) for kind in KINDS for r in self.entries(kind) if need in r.entry.gives
                ]
                hint = f"choose {' or '.join(givers)}" if givers else "no loaded plugin gives it"
                raise ConfigError(f"{one} needs {need!r}, which nothing chosen gives; {hint}.")

    # --- hooks ------------------------------------------------------------------------------------

    def ask(self, hook: str, **arguments: Any) -> list[tuple[PluginRef, Any]]:
        """Return each plugin that implements a hook, with its answer, by plugins' names.

        For hooks that plugins add.
        """
        return list(self.hooks.call(hook, **arguments))

    def options(self) -> tuple[tuple[str, Option], ...]:
        """Return the options plugins contribute, each with its plugin's name."""
        return self._options

    def find_model(self, model: str, config: EngineConfig) -> ModelSource | None:
        """Return what the first plugin says that knows the model, or None."""
        for ref, source in self.hooks.call("engine_find_model", model=model, config=config):
            if isinstance(source, ModelSource):
                return source
            if isinstance(source, str) and source != model:
                return self.find_model(source, config)
            if source is not None:
                raise _wrong_answer(
                    ref, "engine_find_model", "a ModelSource, another name or None", source
                )
        return None

    def resolve(self, decisions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the decisions that plugins change. Raises `ConfigError` when two of them disagree."""
        changes: dict[str, Any] = {}
        owners: dict[str, PluginRef] = {}
        for ref, answer in self.hooks.call(
            "engine_resolve", decisions=MappingProxyType(dict(decisions))
        ):
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
                changes[name], owners[name] = value, ref
        return changes

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when first asked under this name: what a feature's halves in
        one process share.
        """
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def admission_extensions(
        self, config: EngineConfig, edge: Edge
    ) -> tuple[tuple[Blame, AdmissionExtension], ...]:
        """Return what features that are on do with requests at the edge, attached, each with what
        blames its plugin.
        """
        pairs = self._halves("admission", config)
        for blame, extension in pairs:
            if hasattr(extension, "attach"):
                with blame:
                    extension.attach(edge)
        return pairs

    def scheduler_extensions(self, config: EngineConfig) -> tuple[SchedulerExtension, ...]:
        """Return the scheduler halves of the features that are on."""
        return tuple(extension for _, extension in self._halves("scheduler", config))

    def runner_extensions(self, config: EngineConfig) -> tuple[tuple[Blame, RunnerExtension], ...]:
        """Return the worker halves of the features that are on, each with what blames its plugin."""
        return self._halves("runner", config)

    def _halves(self, half: str, config: EngineConfig) -> tuple[tuple[Blame, Any], ...]:
        hook = f"engine_{half}_extensions"
        given = self.hooks.call(hook, config=config, registry=self)
        action = f"failed in its {half} extension"
        around = times_of(self).around
        halves = (
            (self.hooks.blame(ref, action), each)
            for ref, found in given
            for each in _listed(ref, hook, found)
        )
        return tuple((blame, around(blame.plugin.name, each, blame)) for blame, each in halves)

    def process_started(self, process: str) -> None:
        """Tell every plugin that this process has loaded them."""
        for _ in self.hooks.call("engine_process_start", process=process):
            pass

    # --- collecting -------------------------------------------------------------------------------

    def _collect(self, kind: str) -> tuple[Registered, ...]:
        found: dict[str, Registered] = {}
        for ref, entries in self.hooks.call(KINDS[kind].hook):
            for entry in _listed(ref, KINDS[kind].hook, entries, Entry):
                registered = Registered(kind, entry, ref)
                _check_api(registered)
                if KINDS[kind].opt_in_third_party and not (ref.builtin or ref.named):
                    self.withheld.append(registered)
                    log.info(
                        "%s is off until the plugin is named: --plugins +%s", registered, ref.name
                    )
                    continue
                other = found.setdefault(entry.name, registered)
                if other is not registered:
                    raise PluginError(
                        f"{other} and {registered} have one name. Leave one of the plugins out, "
                        "for example with "
                        f"--plugins no:{other.plugin.name}."
                    )
        return tuple(found[name] for name in sorted(found))

    def _more_to_load(self, kind: str) -> str:
        """Say what might have brought the missing thing."""
        parts = [
            f"{r.entry.name!r} of {r.plugin} is off until named (--plugins +{r.plugin.name})"
            for r in self.withheld
            if r.kind == kind
        ]
        if self.plan.absent:
            parts.append(f"builtins absent from this installation: {', '.join(self.plan.absent)}")
        return "".join(f". {part[0].upper()}{part[1:]}" for part in parts)


def _listed(ref: PluginRef, hook: str, found: Any, wanted: type[Any] = object) -> list[Any]:
    """Return what a hook gave as a list.

    Raises `PluginError` for anything else, such as a list of other things.
    """
    if not isinstance(found, (list, tuple)) or not all(isinstance(item, wanted) for item in found):
        what = "a list" if wanted is object else f"a list of {wanted.__name__} objects"
        raise _wrong_answer(ref, hook, what, found)
    return list(found)


def _wrong_answer(ref: PluginRef, hook: str, wanted: str, found: Any) -> PluginError:
    return PluginError(
        f"{ref} must return {wanted} from its hook {hook}, not {found!r:.200}. {ref.way_out}"
    )


def _check_api(registered: Registered) -> None:
    api = registered.entry.api
    written = f"{registered} is written for version {api} of the contracts"
    if api > API_VERSION or api < API_VERSION - 1:
        which = (
            ". Upgrade the engine"
            if api > API_VERSION
            else f" and still takes {API_VERSION - 1}. Upgrade the plugin"
        )
        raise PluginError(
            f"{written}, this engine has {API_VERSION}{which}. {registered.plugin.way_out}"
        )
    if api < API_VERSION:
        log.warning("%s and will be refused by the next engine: %s", written, advice(api))
