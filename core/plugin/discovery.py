"""Finds plugins in installed distributions and local files, without
importing them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from importlib_metadata import EntryPoint, distributions, entry_points

import core
from core.errors import ConfigError, PluginError
from core.option_files import read_option_bytes

GROUP: Final = "engine.plugins"
CORE: Final = "core"
"""Distribution of the builtin plugins."""
OPT_IN: Final = "opt_in"
OWN_PACKAGES: Final = ("builtin_plugins", "core")
_NAME: Final = re.compile(r"\w[\w.-]{0,199}")


class PluginRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One plugin, found but not imported; plain data that is sent to
    every process.
    """

    name: str
    target: str
    """Module to import, or absolute path of a local file."""
    distribution: str = ""
    """Distribution; empty for a local plugin."""
    version: str = ""
    builtin: bool = False
    opt_in: bool = False
    """True: loads only when named (entry point extra `[opt_in]`)."""
    named: bool = False
    """True: the user named it. Third-party routes are served only then."""
    sha256: str = ""
    """Hash of a local plugin's file."""
    flag: str = "--plugins"
    """Flag that named a local plugin."""

    @property
    def is_file(self) -> bool:
        """True for a local file, False for a module."""
        return self.target.endswith(".py")

    @property
    def origin(self) -> str:
        """Distribution and version, or the location of local code."""
        if self.distribution:
            return f"{self.distribution} {self.version}"
        return f"local {'file' if self.is_file else 'module'} {self.target}"

    @property
    def disable_hint(self) -> str:
        """How to disable the plugin, as a sentence."""
        if self.distribution:
            return f"Leave it out with --plugins no:{self.name}."
        return f"Correct it, or leave it out of {self.flag}."

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.origin})"


KERNEL: Final = PluginRef(
    name="kernel",
    target="core.kernel_plugin",
    distribution=CORE,
    version=core.__version__,
    builtin=True,
)
"""The plugin that is always loaded."""


def discover() -> Iterator[PluginRef]:
    """Yield the kernel plugin, then all installed ones by name; names may occur twice.

    Raises `PluginError` for a distribution with broken metadata.
    """
    yield KERNEL
    try:
        yield from _installed(entry_points(group=GROUP))
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise PluginError(
            f"{_find_broken()}: the metadata of this installed distribution cannot be read "
            f"({error!r:.200}). Reinstall it, or remove the folder."
        ) from error


def _installed(points: Iterable[EntryPoint]) -> list[PluginRef]:
    # Reading a distribution's metadata is the slowest part, so it is cached.
    found: dict[int, tuple[str, str]] = {}
    refs = []
    for point in sorted(points, key=lambda p: (p.name, p.value)):
        dist = point.dist
        if dist is None:
            continue
        if id(dist) not in found:
            found[id(dist)] = (dist.name, dist.version)
        name, version = found[id(dist)]
        if not _NAME.fullmatch(point.name):
            raise ValueError(f"{name} {version} has a plugin named {point.name!r:.100}")
        ref = PluginRef(
            name=point.name,
            target=point.module,
            distribution=name,
            version=version,
            builtin=name == CORE and point.module.partition(".")[0] in OWN_PACKAGES,
            opt_in=OPT_IN in point.extras,
        )
        refs.append(ref)
    return refs


def _find_broken() -> str:
    """Return the metadata folder of the first distribution that cannot
    be read.
    """
    for dist in distributions():
        try:
            _installed(point for point in dist.entry_points if point.group == GROUP)
        except (OSError, LookupError, TypeError, ValueError):
            return str(getattr(dist, "_path", dist))
    return "an installed distribution"


def is_absent(ref: PluginRef) -> bool:
    """Return whether the files of a builtin are missing from this installation."""
    return ref.builtin and module_file(ref.target) is None


def local_plugin(written: str) -> PluginRef:
    """Return the plugin in `./file.py` or `pkg.module`. Raises
    `ConfigError` if there is none.
    """
    if looks_like_file(written):
        file: Path | None = Path(os.path.realpath(Path(written).expanduser()))
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
        kind = "file" if target.endswith(".py") else "module"
        raise ConfigError(f"--plugins {written}: there is no such {kind}.")
    sha256 = hashlib.sha256(read_option_bytes(f"--plugins {written}:", file)).hexdigest()
    return PluginRef(name=name, target=target, named=True, sha256=sha256)


def looks_like_file(written: str) -> bool:
    """Return whether a selector is a path rather than a name."""
    return "/" in written or written.endswith(".py")


def module_file(dotted: str) -> Path | None:
    """Return the source file of a module without importing it; None if
    there is none.
    """
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
