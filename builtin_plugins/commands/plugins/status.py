"""Status of plugins and entries: which are loaded, which are chosen and why; lock files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from core.api import ConfigError, PluginError, did_you_mean
from core.api.plugins import (
    KINDS,
    NONE,
    PluginPlan,
    PluginRef,
    discover,
    files_of,
    is_absent,
    make_plan,
    module_file,
    parse_selection,
)
from core.testing.facts import FACTS

if TYPE_CHECKING:
    from core.api import Entry
    from core.api.execution import Platform
    from core.api.plugins import Kind, LoadedRegistry, Registered


_HOOK_DEF: Final = re.compile(r"^def (engine_\w+)", re.MULTILINE)
"""Finds the hooks in a plugin's source: listing plugins imports none of them."""


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """Status of a plugin: on, off, opt-in, blocked, absent, or clash (a duplicate name)."""

    plugin: PluginRef
    status: str
    note: str = ""
    """Action for the user; empty for none."""


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """Status of an entry in the selection of its kind."""

    name: str
    plugin: PluginRef
    priority: int
    summary: str
    chosen: bool
    reason: str


def plugin_statuses(selection: Sequence[str], lock: str | None = None) -> list[PluginStatus]:
    """Return the status of every plugin under a selection. Imports none of them."""
    parsed = parse_selection(selection)
    blocked = {item.name for item in parsed.blocked}
    clashing: set[str] = set()
    try:
        plan = make_plan(selection, lock)
    except PluginError:
        # Two plugins share a name. Plan without them; no lock contains such a set.
        counts = Counter(ref.name for ref in discover())
        clashing = {name for name, count in counts.items() if count > 1} - blocked
        others = [
            item.written for item in (*parsed.exact, *parsed.added) if item.name not in clashing
        ]
        none = [NONE] if parsed.nothing else []
        plan = make_plan([*none, *others, *(f"no:{name}" for name in sorted(blocked | clashing))])
    loaded = {(ref.name, ref.distribution) for ref in plan.plugins}
    found = [ref for ref in discover() if (ref.name, ref.distribution) not in loaded]

    def status(ref: PluginRef) -> PluginStatus:
        if ref.name in clashing:
            note = (
                f"two plugins are named {ref.name!r}. Uninstall one, "
                f"or exclude both with --plugins no:{ref.name}"
            )
            return PluginStatus(ref, "clash", note)
        if ref.name in blocked:
            return PluginStatus(ref, "blocked")
        if is_absent(ref):
            return PluginStatus(ref, "absent")
        return PluginStatus(ref, "opt-in" if ref.opt_in else "off")

    rows = [_loaded(ref) for ref in plan.plugins] + [status(ref) for ref in found]
    return sorted(rows, key=lambda row: (not row.plugin.builtin, row.plugin.name))


def _loaded(ref: PluginRef) -> PluginStatus:
    """Return the status of a loaded plugin.

    Kinds that open network endpoints stay off until the user names the plugin.
    """
    if ref.builtin or ref.named:
        return PluginStatus(ref, "on")
    file = module_file(ref.target)
    hooks = (
        set(_HOOK_DEF.findall(file.read_text(encoding="utf-8", errors="replace")))
        if file is not None
        else set()
    )
    withheld = {kind.hook for kind in KINDS.values() if kind.opt_in_third_party} & hooks
    if not withheld:
        return PluginStatus(ref, "on")
    what = " and ".join(sorted(name.removeprefix("engine_") for name in withheld))
    return PluginStatus(
        ref,
        "off" if hooks == withheld else "on",
        f"its {what} are off until named: --plugins +{ref.name}",
    )


def find_kind(name: str) -> Kind:
    """Return a kind by name. Raises `ConfigError` with a suggestion."""
    if name not in KINDS:
        raise ConfigError(
            f"unknown kind {name!r}; kinds: {', '.join(KINDS)}{did_you_mean(name, KINDS)}"
        )
    return KINDS[name]


def platform_facts(registry: LoadedRegistry) -> dict[str, Any]:
    """Return the facts of the platform that `--device auto` selects; empty without a platform."""
    for candidate in registry.rank("platforms"):
        platform: Platform = registry.load(candidate.registered)()
        if platform.is_available():
            return dict(platform.facts())
    return {}


def check_facts(registry: LoadedRegistry, kind: str, given: Iterable[str]) -> None:
    """Raise `ConfigError` for a fact that is neither provided nor required by an entry."""
    required = {name for registered in registry.entries(kind) for name in registered.entry.when}
    known = sorted(
        {*FACTS.get(kind, ()), *(platform_facts(registry) if kind in FACTS else ()), *required}
    )
    for name in given:
        if name not in known:
            listed = (
                f"facts of {kind}: {', '.join(known)}"
                if known
                else f"{kind} are chosen without facts"
            )
            raise ConfigError(f"--fact: got {name}; {listed}{did_you_mean(name, known)}")


def explain(registry: LoadedRegistry, kind: str, facts: Mapping[str, Any]) -> list[EntryStatus]:
    """Return the status of each entry of a kind, best first, withheld entries last."""
    winners: dict[str, Entry] = {}
    statuses = []
    for candidate in registry.rank(kind, facts):
        registered = candidate.registered
        reason = candidate.reason
        if kind == "platforms" and not reason and not registry.load(registered)().is_available():
            reason = "no such device on this machine"
        if not reason:
            winner = winners.setdefault(_group(kind, registered.entry.name), registered.entry)
            reason = _why(kind, registered.entry, winner)
        statuses.append(_entry_status(registered, registered.entry in winners.values(), reason))
    withheld = (registered for registered in registry.withheld if registered.kind == kind)
    return statuses + [
        _entry_status(r, False, f"off until the plugin is named: --plugins +{r.plugin.name}")
        for r in withheld
    ]


def _entry_status(registered: Registered, chosen: bool, reason: str) -> EntryStatus:
    entry = registered.entry
    return EntryStatus(entry.name, registered.plugin, entry.priority, entry.summary, chosen, reason)


def _group(kind: str, name: str) -> str:
    """Return the group in which an entry competes: its kind, its op, or itself alone."""
    use = KINDS[kind].use
    if use == "best":
        return ""
    if use == "best per op":
        return name.partition("/")[0]
    return name


def _why(kind: str, entry: Entry, winner: Entry) -> str:
    if KINDS[kind].use == "all":
        return "used, like all that fit"
    if KINDS[kind].use == "named":
        return "fits; used when selected by name"
    if winner is entry:
        return "fits, with the highest priority of those that fit"
    if winner.priority > entry.priority:
        return f"fits with priority {entry.priority}, but {winner.name!r} has {winner.priority}"
    return f"fits, but {winner.name!r} has the same priority and is first by name"


def write_lock(plan: PluginPlan) -> bytes:
    """Return the lock file of a plan: the exact plugins and their file hashes, one per line."""
    targets: dict[str, list[str]] = {}
    for ref in plan.plugins:
        if ref.distribution:
            targets.setdefault(ref.distribution, []).append(ref.target)
    locked = msgspec.structs.replace(
        plan,
        plugins=tuple(_without_folder(ref) for ref in plan.plugins),
        files={name: files_of(name, modules) for name, modules in targets.items()},
    )
    return msgspec.json.format(msgspec.json.encode(locked), indent=1) + b"\n"


def _without_folder(ref: PluginRef) -> PluginRef:
    """Return a plugin file reference without its folder: a lock holds the content, not the path."""
    return msgspec.structs.replace(ref, target=Path(ref.target).name) if ref.is_file else ref
