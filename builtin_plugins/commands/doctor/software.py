"""What is installed: our own files and metadata, dependencies, torch, kernels, devices.

torch and the kernel library are tried in a process of their own: one built for another processor
ends it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from core_kernels.build import find_compiler
from importlib_metadata import Distribution, PackageNotFoundError, distribution
from packaging.requirements import Requirement

import core
from builtin_plugins.commands.doctor.finding import Finding, judge

DISTRIBUTION: Final = "core"
GROUP: Final = "engine.plugins"
REINSTALL: Final = "Install it again: pip install -e . --no-deps"
PROBE_TIMEOUT_S: Final = 120
PROBE: Final = """
import json
import torch

found = {
    "torch": torch.__version__,
    "cuda": torch.version.cuda or torch.version.hip,
    "threads": torch.get_num_threads(),
    "openmp": torch.backends.openmp.is_available(),
    "devices": [],
    "library": None,
    "faults": [],
}
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found["devices"].append(f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB")
from core_kernels.build import FOLDER, LIBRARY_NAME
from core_kernels.library import cache_path, open_library

for path in (FOLDER / LIBRARY_NAME, cache_path()):
    if path.exists():
        library, fault = open_library(path)
        if library is not None:
            found["library"] = {"path": str(path), "isa": library.core_kernels_isa().decode()}
            break
        found["faults"].append(fault)
print(json.dumps(found))
"""


def check_torch(script: str = PROBE) -> Iterator[Finding]:
    """torch, the devices it sees, and the kernel library, as a new process finds them."""
    found = _probe(script)
    if isinstance(found, str):
        yield Finding(
            "fail",
            "torch",
            found,
            "Install a build that fits this machine and its drivers",
        )
        return
    build = f"for CUDA or ROCm {found['cuda']}" if found["cuda"] else "for CPUs"
    yield judge(
        "torch",
        f"{found['torch']}, built {build}, {found['threads']} threads",
        warn=not found["openmp"],
        advice="It was built without OpenMP and computes with one thread",
    )
    yield from _devices(found)
    yield _kernels(found)


def _devices(found: Mapping[str, Any]) -> Iterator[Finding]:
    if found["devices"]:
        yield Finding("ok", "devices", "; ".join(found["devices"]))
    else:
        seen = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
        yield judge(
            "devices",
            "no GPU" if not seen else f"torch sees none of {', '.join(seen)}",
            warn=bool(seen),
            advice="Install a torch built for CUDA, and check the driver with nvidia-smi",
        )


def _kernels(found: Mapping[str, Any]) -> Finding:
    compiler = find_compiler()
    if found["library"] is not None:
        return Finding(
            "ok", "kernels", f"{found['library']['isa']}, from {found['library']['path']}"
        )
    faults = "; ".join(found["faults"]) or "no library"
    if compiler:
        return Finding("warn", "kernels", f"{faults}; built with {compiler} at the next start")
    return Finding(
        "warn", "kernels", f"{faults}, and no compiler: plain torch does the work", "Install g++"
    )


def check_compiler() -> Iterator[Finding]:
    """Whether kernels could be built here."""
    compiler = find_compiler()
    yield Finding(
        "ok", "compiler", compiler or "none (needed only where no kernel library is installed)"
    )


def check_dependencies() -> Iterator[Finding]:
    """Versions of what we need against the ranges our own metadata states."""
    own = _own()
    if own is None:
        return
    wrong: list[str] = []
    shown: list[str] = []
    for requirement in map(Requirement, own.requires or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = distribution(requirement.name).version
        except PackageNotFoundError:
            wrong.append(f"{requirement} is not installed")
            continue
        shown.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        yield Finding(
            "fail",
            "dependencies",
            "; ".join(wrong),
            f"pip install --upgrade {DISTRIBUTION} brings them",
        )
    yield Finding("ok", "versions", ", ".join(sorted(shown)))


def check_installation() -> Iterator[Finding]:
    """Our own files: which they are, whether the metadata describes them, and whether others are in
    the way.
    """
    home = Path(core.__file__).resolve().parent
    own = _own()
    if own is None:
        yield Finding(
            "fail",
            "engine",
            f"{core.__version__} in {home}, but it is not installed",
            "pip install -e .",
        )
        return
    yield judge(
        "engine",
        f"{core.__version__} in {home}",
        warn=own.version != core.__version__,
        advice=f"The metadata says {own.version}. {REINSTALL}",
    )
    yield from _metadata(own, home.parent / "pyproject.toml")
    foreign = Path.cwd() / "core"
    if foreign.is_dir() and foreign.resolve() != home and (foreign / "__init__.py").is_file():
        yield Finding(
            "warn",
            "shadow",
            f"{foreign} hides our package from Python scripts started in this folder",
            "Rename it",
        )


def _metadata(own: Distribution, project: Path) -> Iterator[Finding]:
    """Compare the installed entry points with those of the sources, where these are beside us."""
    if not project.is_file():
        return
    stated = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
    if stated.get("name") != DISTRIBUTION:
        return
    installed = {point.name: point.value for point in own.entry_points if point.group == GROUP}
    differing = sorted(dict(installed.items() ^ stated["entry-points"][GROUP].items()))
    yield judge(
        "metadata",
        f"stale, differs from {project} in: {', '.join(differing)}"
        if differing
        else f"as in {project}",
        fail=bool(differing),
        advice=REINSTALL,
    )


def _own() -> Distribution | None:
    try:
        found: Distribution = Distribution.from_name(DISTRIBUTION)
    except PackageNotFoundError:
        return None
    return found


def _probe(script: str) -> dict[str, Any] | str:
    """Return what the script prints, or a sentence that says how it failed."""
    path = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"cannot be imported within {PROBE_TIMEOUT_S} s"
    if done.returncode < 0:
        return f"a process that imports it is ended by {signal.Signals(-done.returncode).name}"
    if done.returncode > 0:
        return (
            f"cannot be imported: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
