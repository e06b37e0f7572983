"""Finds plugins in the metadata of installed distributions and in local files.

Imports none of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from importlib_metadata import entry_points

import core
from core.errors import ConfigError
from core.plugin.refs import PluginRef

GROUP: Final = "engine.plugins"
CORE: Final = "core"
"""The distribution whose plugins are the builtins."""
OPT_IN: Final = "opt_in"
KERNEL: Final = PluginRef(
    name="kernel",
    target="core.kernel_plugin",
    distribution=CORE,
    version=core.__version__,
    builtin=True,
)
"""The plugin that is always on."""


def discover() -> Iterator[PluginRef]:
    """Yield the kernel's plugin, then every installed one in the order of names; names may occur
    twice.
    """
    yield KERNEL
    points = entry_points(group=GROUP)
    read: dict[
        int, tuple[str, str]
    ] = {}  # reading a distribution's metadata costs more than all the rest
    for point in sorted(points, key=lambda p: (p.name, p.value)):
        dist = point.dist
        if dist is None:
            continue
        if id(dist) not in read:
            read[id(dist)] = (dist.name, dist.version)
        name, version = read[id(dist)]
        yield PluginRef(
            name=point.name,
            target=point.module,
            distribution=name,
            version=version,
            builtin=name == CORE,
            opt_in=OPT_IN in point.extras,
        )


def is_absent(ref: PluginRef) -> bool:
    """Say whether a builtin's files were taken out of this installation."""
    return ref.builtin and module_file(ref.target) is None


def local_plugin(written: str) -> PluginRef:
    """Return the plugin in `./file.py` or `pkg.module`.

    Raises `ConfigError` when there is no such file.
    """
    if looks_like_file(written):
        file: Path | None = Path(written).expanduser().resolve()
        name = Path(written).stem
        target = str(file)
        if not target.endswith(".py"):
            raise ConfigError(
                f"--plugins {written}: a local plugin is a Python file (`./file.py`) or a module "
                "(`pkg.module`). "
                "Install a whole project with `pip install -e` and name its plugin."
            )
    else:
        file = module_file(written)
        name = written
        target = written
    if file is None or not file.is_file():
        raise ConfigError(
            f"--plugins {written}: there is no such "
            f"{'file' if target.endswith('.py') else 'module'}."
        )
    return PluginRef(
        name=name, target=target, named=True, sha256=hashlib.sha256(file.read_bytes()).hexdigest()
    )


def looks_like_file(written: str) -> bool:
    """Say whether a selection means a path rather than a name."""
    return "/" in written or written.endswith(".py")


def module_file(dotted: str) -> Path | None:
    """Return the source file of a module, without importing any part of it; None if there is none."""
    top, _, rest = dotted.partition(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin else None
    for location in spec.submodule_search_locations or ():
        base = Path(location, *rest.split("."))
        for file in (base.with_name(base.name + ".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None
