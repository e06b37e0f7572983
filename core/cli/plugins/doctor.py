"""Answers questions about plugins: which there are and why they are on or off, and why a candidate won or lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError, did_you_mean
from core.plugin.discovery import discover, is_absent
from core.plugin.kinds import KINDS
from core.plugin.plan import make_plan
from core.plugin.refs import PluginRef
from core.plugin.selection import parse_selection

if TYPE_CHECKING:
    from core.contracts import Platform
    from core.plugin.entry import Entry
    from core.plugin.kinds import Kind
    from core.plugin.registry import Registered, Registry


@dataclass(frozen=True, slots=True)
class Standing:
    """A plugin and whether it is loaded: "on", "off", "opt-in", "blocked" or "absent"."""

    plugin: PluginRef
    status: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one entry fared, and why."""

    name: str
    plugin: PluginRef
    priority: int
    summary: str
    chosen: bool
    reason: str


def standings(selection: Sequence[str], lock: str | None = None) -> list[Standing]:
    """Return every plugin there is, with what a selection makes of it. Imports none of them."""
    plan = make_plan(selection, lock)
    blocked = {wish.name for wish in parse_selection(selection).blocked}
    loaded = {(ref.name, ref.distribution) for ref in plan.plugins}
    found = [ref for ref in discover() if (ref.name, ref.distribution) not in loaded]

    def status(ref: PluginRef) -> str:
        if ref.name in blocked:
            return "blocked"
        return "absent" if is_absent(ref) else "opt-in" if ref.opt_in else "off"

    rows = [Standing(ref, "on") for ref in plan.plugins] + [Standing(ref, status(ref)) for ref in found]
    return sorted(rows, key=lambda row: (not row.plugin.builtin, row.plugin.name))


def kind_called(name: str) -> Kind:
    """Return a kind. Raises `ConfigError` with the nearest one."""
    if name not in KINDS:
        raise ConfigError(f"unknown kind {name!r}; kinds: {', '.join(KINDS)}{did_you_mean(name, KINDS)}")
    return KINDS[name]


def platform_facts(registry: Registry) -> dict[str, Any]:
    """Return the facts of the platform that `auto` takes on this machine; none when there is no platform."""
    for candidate in registry.rank("platforms"):
        platform: Platform = registry.load(candidate.registered)()
        if platform.is_available():
            return dict(platform.facts())
    return {}


def explain(registry: Registry, kind: str, facts: Mapping[str, Any]) -> list[Verdict]:
    """Return how each entry of a kind fares with these facts, best first, those withheld last."""
    winners: dict[str, Entry] = {}
    verdicts = []
    for candidate in registry.rank(kind, facts):
        registered, reason = candidate.registered, candidate.reason
        if kind == "platforms" and not reason and not registry.load(registered)().is_available():
            reason = "no such device on this machine"
        if not reason:
            winner = winners.setdefault(_contest(kind, registered.entry.name), registered.entry)
            reason = _why(kind, registered.entry, winner)
        verdicts.append(_verdict(registered, registered.entry in winners.values(), reason))
    withheld = (registered for registered in registry.withheld if registered.kind == kind)
    return verdicts + [
        _verdict(r, False, f"off until the plugin is named: --plugins +{r.plugin.name}") for r in withheld
    ]


def _verdict(registered: Registered, chosen: bool, reason: str) -> Verdict:
    entry = registered.entry
    return Verdict(entry.name, registered.plugin, entry.priority, entry.summary, chosen, reason)


def _contest(kind: str, name: str) -> str:
    """Return what an entry competes for: with all of its kind, with those of its op, or with nobody."""
    use = KINDS[kind].use
    return "" if use == "best" else name.partition("/")[0] if use == "best per op" else name


def _why(kind: str, entry: Entry, winner: Entry) -> str:
    if KINDS[kind].use == "all":
        return "used, as all that fit are"
    if KINDS[kind].use == "named":
        return "fits; used when asked for by name"
    if winner is entry:
        return "fits, and none that fits has a higher priority"
    if winner.priority > entry.priority:
        return f"fits, but {winner.name!r} has priority {winner.priority}, this one {entry.priority}"
    return f"fits, but {winner.name!r} has the same priority and comes first by name"
