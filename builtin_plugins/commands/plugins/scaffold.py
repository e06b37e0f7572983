"""Writes a complete plugin package for one kind from the template."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import core
from builtin_plugins.commands.plugins.copy_architecture import copy_architecture
from core.api import API_VERSION, ConfigError, did_you_mean
from core.api.plugins import KINDS, discover
from core.testing.conformance.extension_points import EXTENSION_POINTS

TEMPLATE: Final = Path(__file__).parent / "template"
MODEL_WITH_TOWER: Final = TEMPLATE / "model_with_tower"
"""The module of a model that reads images."""
PLACEHOLDER: Final = "acme"
"""Plugin name in the template; `Acme` for classes."""
DISTRIBUTION: Final = "core-inference-engine"
"""Name of the engine on PyPI, where `core` may belong to another project.

The publisher of the engine sets it in `pyproject.toml` and `core.plugin.discovery.CORE`.
"""
TARGETS: Final = {**KINDS, **EXTENSION_POINTS}
"""Kinds and extension points that have a template."""


def write_package(
    name: str,
    kind: str,
    folder: Path,
    architecture: str | None = None,
    begins_as: str | None = None,
    *,
    tower: bool = False,
) -> list[Path]:
    """Write the package `engine-NAME` into `folder` and return its files.

    `architecture` is the name in the model's config.json; the default derives from the plugin
    name. `begins_as` copies a builtin architecture. `tower` adds a tower and its input processor
    to a model.

    Raises `ConfigError` for an invalid name, the name of a builtin, and a folder that is not empty.
    """
    _check_names(name, kind, architecture, begins_as)
    if tower and (kind != "models" or begins_as is not None):
        raise ConfigError("--tower: expected with --kind models and without --from. Remove it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output: got {folder}; expected an empty or new folder.")
    copy = None if begins_as is None else copy_architecture(begins_as)
    values = {
        "KIND_NAME": kind,
        "KIND": TARGETS[kind].noun,
        "VERSION_BOUNDS": version_bounds(core.__version__),
        "API_VERSION": str(API_VERSION),
        "PUBLISHED": DISTRIBUTION,
        "acme.model:spec": f"acme.model:{'spec' if copy is None else copy.function}",
        "AcmeForCausalLM": architecture or "AcmeForCausalLM",
    }
    files = []
    own = MODEL_WITH_TOWER if tower else TEMPLATE / "kinds" / kind
    for source, target in _files(own):
        file = folder / _rename(target, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        file.write_text(
            copy.text if copy is not None and source.name == "model.py" else _rename(text, name)
        )
        files.append(file)
    return sorted(files)


def _check_names(name: str, kind: str, architecture: str | None, begins_as: str | None) -> None:
    """Raise `ConfigError` for an invalid name, kind or architecture."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(
            f"name: got {name!r}; expected lower-case letters, digits and single underscores."
        )
    if any(ref.builtin and ref.name == name for ref in discover()):
        raise ConfigError(f"name: got {name!r}; expected a name that no builtin plugin has.")
    if kind not in TARGETS:
        raise ConfigError(
            f"--kind: got {kind!r}; expected one of {', '.join(TARGETS)}"
            f"{did_you_mean(kind, TARGETS)}"
        )
    if architecture is not None and (kind != "models" or not architecture.isidentifier()):
        raise ConfigError(
            f"--architecture: got {architecture!r}; expected an architecture of a config.json, "
            "with --kind models."
        )
    if begins_as is not None and kind != "models":
        raise ConfigError(
            f"--from: got {begins_as!r}; expected an architecture, with --kind models."
        )


def version_bounds(version: str) -> str:
    """Return the range of compatible engine versions: up to the next major, before 1.0 minor."""
    major, minor = map(int, version.split(".")[:2])
    end = f"0.{minor + 1}" if major == 0 else f"{major + 1}"
    return f">={major}.{minor},<{end}"


def next_steps(name: str, folder: Path) -> str:
    """Return the command line that installs, tests and checks a new package."""
    python = shlex.quote(sys.executable)
    extras = shlex.quote(f"{folder}[test]")
    return (
        f"{python} -m pip install -e {extras} && {python} -m pytest {shlex.quote(str(folder))} && "
        f"{python} -m core.cli.main plugins check {name}"
    )


def _files(own: Path) -> Iterator[tuple[Path, str]]:
    """Yield every template file, with its path in the package; `own` is the kind's folder."""
    package = TEMPLATE / "package"
    for base, prefix in ((package, ""), (own, "engine_acme/")):
        for file in sorted(base.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                path = prefix + file.relative_to(base).as_posix()
                if path.startswith("github/"):
                    path = f".{path}"  # wheels omit hidden folders
                yield file, path


def _rename(text: str, name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("_"))
    text = text.replace(f"engine-{PLACEHOLDER}", f"engine-{name.replace('_', '-')}")
    return text.replace(PLACEHOLDER, name).replace(PLACEHOLDER.capitalize(), title)
