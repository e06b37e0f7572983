"""`engine plugins new`: writes a complete package for one kind from the template, whose tests pass
as they are.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import core
from builtin_plugins.commands.plugins.borrowed import borrowed
from core.errors import ConfigError, did_you_mean
from core.plugin.discovery import discover
from core.plugin.entry import API_VERSION
from core.plugin.kinds import KINDS
from core.testing.conformance.joints import JOINTS

TEMPLATE: Final = Path(__file__).parent / "template"
PLACE: Final = "acme"
"""Stands in the template for the plugin's name, `Acme` for its class."""
PUBLISHED: Final = "core-inference-engine"
"""The engine's name on the public index, where `core` may be a stranger's; whoever publishes it
writes this in
`pyproject.toml`, and in `core.plugin.discovery.CORE`."""
WRITTEN: Final = {**KINDS, **JOINTS}
"""What a package can be written for."""


def write_package(
    name: str,
    kind: str,
    folder: Path,
    architecture: str | None = None,
    begins_as: str | None = None,
) -> list[Path]:
    """Write the package `engine-NAME` into `folder` and return its files.

    A model's `architecture` is spelt as in its config.json; without it, that is a guess from the
    plugin's name. It may begin as a copy of one of the engine's.

    Raises `ConfigError` for a name that cannot be a module's or is that of a builtin, and for a
    folder that holds something already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(
            f"{name!r} cannot be a plugin's name; use lower-case letters, digits and single "
            "underscores."
        )
    if any(ref.builtin and ref.name == name for ref in discover()):
        raise ConfigError(
            f"the engine has a plugin {name!r} itself, and no two may have one name; give yours "
            "another."
        )
    if kind not in WRITTEN:
        raise ConfigError(
            f"there is no kind {kind!r}; kinds: {', '.join(WRITTEN)}{did_you_mean(kind, WRITTEN)}"
        )
    if architecture is not None and (kind != "models" or not architecture.isidentifier()):
        raise ConfigError(
            f"--architecture {architecture!r} is the name of a model in config.json, for --kind "
            "models only."
        )
    if begins_as is not None and kind != "models":
        raise ConfigError(
            f"--from {begins_as!r} is the name of a model in config.json, for --kind models only."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is not empty; give another folder with --output, nothing is written over."
        )
    copy = None if begins_as is None else borrowed(begins_as)
    written = []
    for source, place in _files(kind):
        file = folder / _renamed(place, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        for place_holder, value in (
            ("KIND_NAME", kind),
            ("KIND", WRITTEN[kind].noun),
            ("VERSION_BOUNDS", version_bounds(core.__version__)),
            ("API_VERSION", str(API_VERSION)),
            ("PUBLISHED", PUBLISHED),
            ("acme.model:spec", f"acme.model:{'spec' if copy is None else copy.function}"),
            ("AcmeForCausalLM", architecture or "AcmeForCausalLM"),
        ):
            text = text.replace(place_holder, value)
        file.write_text(
            copy.text if copy is not None and source.name == "model.py" else _renamed(text, name)
        )
        written.append(file)
    return sorted(written)


def version_bounds(version: str) -> str:
    """Return the versions of the engine that promise what this one does: to the next minor one
    (before 1.0) or major.
    """
    major, minor = map(int, version.split(".")[:2])
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def next_steps(name: str, folder: Path) -> str:
    """Return the command line that installs a new package beside this engine, with what its tests
    need, and checks it.
    """
    python = shlex.quote(sys.executable)
    extras = shlex.quote(f"{folder}[test]")
    return (
        f"{python} -m pip install -e {extras} && {python} -m pytest {shlex.quote(str(folder))} && "
        f"{python} -m core.cli.main plugins check {name}"
    )


def _files(kind: str) -> Iterator[tuple[Path, str]]:
    """Yield every file of the template for a kind, with its place in the package."""
    package = TEMPLATE / "package"
    for base, prefix in ((package, ""), (TEMPLATE / "kinds" / kind, "engine_acme/")):
        for file in sorted(base.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                place = prefix + file.relative_to(base).as_posix()
                yield (
                    file,
                    f".{place}" if place.startswith("github/") else place,
                )  # wheels leave hidden folders out


def _renamed(text: str, name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("_"))
    text = text.replace(f"engine-{PLACE}", f"engine-{name.replace('_', '-')}")
    return text.replace(PLACE, name).replace(PLACE.capitalize(), title)
