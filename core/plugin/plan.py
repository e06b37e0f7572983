"""The plugin plan: the frozen set of plugins that every process of an engine
loads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from core.errors import ConfigError, PluginError, did_you_mean
from core.option_files import read_option_bytes
from core.plugin.discovery import (
    KERNEL,
    PluginRef,
    discover,
    is_absent,
    local_plugin,
    looks_like_file,
)
from core.plugin.file_hashes import Files, changed_files
from core.plugin.selection import Selection, Selector, parse_selection


class PluginPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The exact plugins to load. Equal plans have equal digests on every
    machine.
    """

    plugins: tuple[PluginRef, ...]
    """The plugins: the kernel plugin first, then by name."""
    absent: tuple[str, ...] = ()
    """Selected builtins with files missing from this installation."""
    files: Files = {}
    """File hashes of each distribution; in a lock file only."""

    @property
    def digest(self) -> str:
        """SHA-256 over names, distributions, versions and contents of local
        files.
        """
        identities = [_identity(ref) for ref in self.plugins]
        return hashlib.sha256(msgspec.json.encode(identities)).hexdigest()

    def differences(self, locked: PluginPlan) -> list[str]:
        """Return a sentence for each difference from a locked plan."""
        mine, theirs = ({ref.name: ref for ref in plan.plugins} for plan in (self, locked))
        found = []
        for name in sorted({*mine, *theirs}):
            if name not in theirs:
                found.append(f"{mine[name]} is not in it")
            elif name not in mine:
                found.append(f"it holds {theirs[name]}, which is not loaded")
            elif (here := _identity(mine[name])) != (there := _identity(theirs[name])):
                changed = [key for key in here if here[key] != there[key]]
                found += [
                    f"plugin {name!r} has {key} {here[key]!r}, it says {there[key]!r}"
                    for key in changed
                ]
        return found


def make_plan(selection: Sequence[str] = (), lock: str | None = None) -> PluginPlan:
    """Find and select plugins; nothing is imported.

    Raises `ConfigError` for a selection that cannot be met or a difference from the
    lock file, `PluginError` for two plugins with one name.
    """
    plan = _Planner(parse_selection(selection)).plan()
    if lock is None:
        return plan
    locked = read_lock(lock)
    differences = plan.differences(locked) + changed_files(locked.files)
    if differences:
        raise ConfigError(
            f"the plugins differ from the lock file {lock}: {'; '.join(differences)}. Install and "
            "select what it holds, or write it anew with `engine plugins lock`."
        )
    return plan


def read_lock(path: str) -> PluginPlan:
    """Return the plan in a lock file. Raises `ConfigError` if it cannot
    be read.
    """
    advice = "Write it with `engine plugins lock`."
    content = read_option_bytes("--plugins-lock", path, advice=advice)
    try:
        return msgspec.json.decode(content, type=PluginPlan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--plugins-lock {path} cannot be read: {error}. {advice}") from error


def refuse_difference(plan: PluginPlan, process: str) -> None:
    """Raise `PluginError` if this process would load other plugins than the
    plan.
    """
    installed = {(ref.name, ref.distribution): ref for ref in discover()}
    for ref in plan.plugins:
        if not ref.distribution:
            continue  # local files are compared when they are loaded
        here = installed.get((ref.name, ref.distribution))
        if here is None or _identity(here) != _identity(msgspec.structs.replace(ref, named=False)):
            found = "not installed" if here is None else f"{here.origin}, module {here.target}"
            raise PluginError(
                f"process {process!r} must load {ref}, module {ref.target}, but here it is "
                f"{found}. All processes must run in one environment; "
                "restart the engine after installing plugins."
            )


class _Planner:
    """Applies one selection to the installed plugins."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._known: dict[str, list[PluginRef]] = {}
        for ref in discover():
            self._known.setdefault(ref.name, []).append(ref)
        self._blocked = {self._check_known(selector) for selector in selection.blocked}

    def plan(self) -> PluginPlan:
        chosen: dict[str, list[PluginRef]] = {}
        for ref in self._default_set():
            chosen.setdefault(ref.name, []).append(ref)
        for selector in (*self._selection.exact, *self._selection.added):
            named = self._named(selector)
            if named[0].name in self._blocked:
                raise ConfigError(
                    f"--plugins both names and blocks {named[0].name!r}; keep one of the two."
                )
            chosen[named[0].name] = named
        kernel = chosen.pop(KERNEL.name, [KERNEL])[0]
        absent = [name for name, refs in chosen.items() if all(is_absent(ref) for ref in refs)]
        picked = [_only(refs) for name, refs in sorted(chosen.items()) if name not in absent]
        return PluginPlan(plugins=(kernel, *picked), absent=tuple(sorted(absent)))

    def _default_set(self) -> Iterable[PluginRef]:
        """Yield the plugins that load without being named."""
        if self._selection.nothing:
            return
        for ref in (ref for refs in self._known.values() for ref in refs):
            if ref.opt_in or ref.name in self._blocked or ref.name == KERNEL.name:
                continue
            if ref.builtin or not self._selection.exact:
                yield ref

    def _named(self, selector: Selector) -> list[PluginRef]:
        """Return the plugin, or the plugins of one name, that the user named."""
        installed = (ref for refs in self._known.values() for ref in refs)
        refs = [
            msgspec.structs.replace(ref, named=True)
            for ref in installed
            if selector.name in (ref.name, ref.target)
        ]
        if not refs and (looks_like_file(selector.name) or "." in selector.name):
            ref = local_plugin(selector.name)
            refs = [*self._known.get(ref.name, ()), ref]
        if not refs:
            self._check_known(selector)
        for ref in refs:
            if is_absent(ref):
                raise ConfigError(
                    f"{ref} belongs to the engine, but this installation lacks its files "
                    f"({ref.target})."
                )
            if not selector.version.contains(ref.version or "0", prereleases=True):
                raise ConfigError(
                    f"--plugins {selector.written!r}: {ref} is installed. Install a version that "
                    "fits, or name another."
                )
        return refs

    def _check_known(self, selector: Selector) -> str:
        name = Path(selector.name).stem if looks_like_file(selector.name) else selector.name
        if selector in self._selection.blocked and name == KERNEL.name:
            raise ConfigError("--plugins no:kernel: the engine cannot run without it.")
        if name not in self._known:
            third = sorted(n for n, refs in self._known.items() if not refs[0].builtin)
            listed = "only builtins are installed"
            if third:
                listed = f"installed besides the builtins: {', '.join(third)}"
            raise ConfigError(
                f"--plugins {selector.written!r}: unknown plugin {name!r}; "
                f"{listed}{did_you_mean(name, self._known)}"
            )
        return name


def _only(refs: list[PluginRef]) -> PluginRef:
    if len(refs) > 1:
        first, second = refs[:2]
        raise PluginError(
            f"two plugins are called {first.name!r}: {first.target} of {first.origin} and "
            f"{second.target} of {second.origin}. Uninstall one of them, or leave both out "
            f"with --plugins no:{first.name}."
        )
    return refs[0]


def _identity(ref: PluginRef) -> Mapping[str, str | bool]:
    """Return what two processes or machines must agree on to run the same plugin."""
    return {
        "distribution": ref.distribution,
        "version": ref.version,
        "module": "" if ref.is_file else ref.target,
        "sha256": ref.sha256,
        "named": ref.named and not ref.builtin,
        "name": ref.name,
    }
