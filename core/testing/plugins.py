"""Plugins for tests: written on the spot, made to look installed, loaded alone; and a count of hook
calls.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pluggy

from core.plugin import Registry, load_plan, make_plan
from core.plugin.manager import Hooks


def load_plugins(*selection: str) -> Registry:
    """Return a registry with exactly these plugins (and the kernel's), as `--plugins none,...`
    gives it.
    """
    return load_plan(make_plan(["none", *selection]))


@contextmanager
def tmp_plugin(source: str, name: str = "tmp_plugin") -> Iterator[str]:
    """Yield the path of a local plugin file with this source, to be selected like `./file.py`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.py")
        file.write_text(textwrap.dedent(source))
        try:
            yield str(file)
        finally:
            sys.modules.pop(f"engine_local_{name}", None)


@contextmanager
def fake_dist(
    name: str, version: str, plugins: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Make a distribution look installed and yield its folder.

    `plugins` maps entry-point names to their value (`module`, `module [opt_in]`); `modules` maps
    module names (top level) to source. Modules imported meanwhile are forgotten at the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        info = root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        points = "".join(f"{plugin} = {value}\n" for plugin, value in plugins.items())
        info.joinpath("entry_points.txt").write_text(f"[engine.plugins]\n{points}")
        for module, source in (modules or {}).items():
            root.joinpath(f"{module}.py").write_text(textwrap.dedent(source))
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield root
        finally:
            sys.path.remove(folder)
            for module in modules or {}:
                sys.modules.pop(module, None)


@contextmanager
def hook_calls() -> Iterator[list[str]]:
    """Yield a list that grows by the name of each hook called, through the engine or through pluggy
    itself.
    """
    calls: list[str] = []
    through_engine = Hooks.call
    through_pluggy = pluggy.HookCaller.__call__

    def call(hooks: Hooks, hook: str, **arguments: Any) -> Any:
        calls.append(hook)
        return through_engine(hooks, hook, **arguments)

    def call_pluggy(caller: pluggy.HookCaller, **arguments: object) -> Any:
        calls.append(caller.name)
        return through_pluggy(caller, **arguments)

    patched: tuple[tuple[Any, str, Any, Any], ...] = (
        (Hooks, "call", call, through_engine),
        (pluggy.HookCaller, "__call__", call_pluggy, through_pluggy),
    )
    for owner, attribute, replacement, _ in patched:
        setattr(owner, attribute, replacement)
    try:
        yield calls
    finally:
        for owner, attribute, _, original in patched:
            setattr(owner, attribute, original)
