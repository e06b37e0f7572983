"""Answers questions about plugins: which there are and why they are on or off, and why a candidate
won or lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from core.contracts.facts import FACTS
from core.errors import ConfigError, PluginError, did_you_mean
from core.plugin.discovery import discover, is_absent, module_file
from core.plugin.kinds import KINDS
from core.plugin.plan import make_plan
from core.plugin.refs import PluginRef
from core.plugin.selection import NONE, parse_selection

if TYPE_CHECKING:
    from core.contracts import Platform
    from core.plugin.entry import Entry
    from core.plugin.kinds import Kind
    from core.plugin.registry import Registered, Registry


_HOOK: Final = re.compile(r"^def (engine_\w+)", re.MULTILINE)
"""Hooks of a plugin's module as its text has them: nothing is imported to list plugins."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A plugin and whether it is loaded: "on", "off", "opt-in", "blocked", "absent" or "clash" (a
    name given twice).
    """

    plugin: PluginRef
    status: str
    note: str = ""
    """What to do about it, where something is to be done."""


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
    wishes = parse_selection(selection)
    blocked = {wish.name for wish in wishes.blocked}
    clashing: set[str] = set()
    try:
        plan = make_plan(selection, lock)
    except (
        PluginError
    ):  # two plugins have one name: shown without them, and no lock holds such a set
        counts = Counter(ref.name for ref in discover())
        clashing = {name for name, count in counts.items() if count > 1} - blocked
        others = [
            wish.written for wish in (*wishes.exact, *wishes.added) if wish.name not in clashing
        ]
        none = [NONE] if wishes.nothing else []
        plan = make_plan([*none, *others, *(f"no:{name}" for name in sorted(blocked | clashing))])
    loaded = {(ref.name, ref.distribution) for ref in plan.plugins}
    found = [ref for ref in discover() if (ref.name, ref.distribution) not in loaded]

    def standing(ref: PluginRef) -> Standing:
        if ref.name in clashing:
            note = f"two plugins are called {ref.name!r}: uninstall one, or leave both out with --plugins no:{ref.name}"
            return Standing(ref, "clash", note)
        if ref.name in blocked:
            return Standing(ref, "blocked")
        return Standing(ref, "absent" if is_absent(ref) else "opt-in" if ref.opt_in else "off")

    rows = [_loaded(ref) for ref in plan.plugins] + [standing(ref) for ref in found]
    return sorted(rows, key=lambda row: (not row.plugin.builtin, row.plugin.name))


def _loaded(ref: PluginRef) -> Standing:
    """Return how a plugin stands that is loaded: what opens new network surface is withheld until
    it is named.
    """
    if ref.builtin or ref.named:
        return Standing(ref, "on")
    file = module_file(ref.target)
    hooks = (
        set(_HOOK.findall(file.read_text(encoding="utf-8", errors="replace")))
        if file is not None
        else set()
    )
    withheld = {kind.hook for kind in KINDS.values() if kind.opt_in_third_party} & hooks
    if not withheld:
        return Standing(ref, "on")
    what = " and ".join(sorted(name.removeprefix("engine_") for name in withheld))
    return Standing(
        ref,
        "off" if hooks == withheld else "on",
        f"its {what} are off until named: --plugins +{ref.name}",
    )


def kind_called(name: str) -> Kind:
    """Return a kind. Raises `ConfigError` with the nearest one."""
    if name not in KINDS:
        raise ConfigError(
            f"unknown kind {name!r}; kinds: {', '.join(KINDS)}{did_you_mean(name, KINDS)}"
        )
    return KINDS[name]


def platform_facts(registry: Registry) -> dict[str, Any]:
    """Return the facts of the platform that `auto` takes on this machine; none when there is no
    platform.
    """
    for candidate in registry.rank("platforms"):
        platform: Platform = registry.load(candidate.registered)()
        if platform.is_available():
            return dict(platform.facts())
    return {}


def check_facts(registry: Registry, kind: str, given: Iterable[str]) -> None:
    """Raise `ConfigError` for a fact that neither the engine nor a loaded platform states and no
    entry of the kind wants.
    """
    wanted = {name for registered in registry.entries(kind) for name in registered.entry.when}
    known = sorted(
        {*FACTS.get(kind, ()), *(platform_facts(registry) if kind in FACTS else ()), *wanted}
    )
    for name in given:
        if name not in known:
            listed = (
                f"facts of {kind}: {', '.join(known)}"
                if known
                else f"{kind} are chosen without facts"
            )
            raise ConfigError(
                f"--fact {name}: nobody states such a fact; {listed}{did_you_mean(name, known)}"
            )


def explain(registry: Registry, kind: str, facts: Mapping[str, Any]) -> list[Verdict]:
    """Return how each entry of a kind fares with these facts, best first, those withheld last."""
    winners: dict[str, Entry] = {}
    verdicts = []
    for candidate in registry.rank(kind, facts):
        registered = candidate.registered
        reason = candidate.reason
        if kind == "platforms" and not reason and not registry.load(registered)().is_available():
            reason = "no such device on this machine"
        if not reason:
            winner = winners.setdefault(_contest(kind, registered.entry.name), registered.entry)
            reason = _why(kind, registered.entry, winner)
        verdicts.append(_verdict(registered, registered.entry in winners.values(), reason))
    withheld = (registered for registered in registry.withheld if registered.kind == kind)
    return verdicts + [
        _verdict(r, False, f"off until the plugin is named: --plugins +{r.plugin.name}")
        for r in withheld
    ]


def _verdict(registered: Registered, chosen: bool, reason: str) -> Verdict:
    entry = registered.entry
    return Verdict(entry.name, registered.plugin, entry.priority, entry.summary, chosen, reason)


def _contest(kind: str, name: str) -> str:
    """Return what an entry competes for: with all of its kind, with those of its op, or with
    nobody.
    """
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
        return (
            f"fits, but {winner.name!r} has priority {winner.priority}, this one {entry.priority}"
        )
    return f"fits, but {winner.name!r} has the same priority and comes first by name"
