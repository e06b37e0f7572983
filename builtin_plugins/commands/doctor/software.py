"""Checks of the installation: own files, dependencies, torch, kernels, plugins, environment.

torch and the kernel library are imported in a subprocess: a wrong build kills the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core_kernels.build import find_compiler
from importlib_metadata import Distribution, PackageNotFoundError, distribution
from packaging.requirements import Requirement

import core
from builtin_plugins.commands.doctor.finding import Finding, judge
from core.api import EngineError, did_you_mean
from core.api.config import CONFIG_FILE, ENVIRONMENT_FIELDS

if TYPE_CHECKING:
    from core.api import CommandContext

DISTRIBUTION: Final = "core"
GROUP: Final = "engine.plugins"
REINSTALL: Final = "Reinstall it: pip install -e . --no-deps"
PROBE_TIMEOUT_S: Final = 120
PROBE: Final = """
import json
from dataclasses import asdict

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
from core_kernels.build import CACHE, FOLDER, LIBRARY_NAME, source_hash
from core_kernels.library import open_library
from core_kernels.speed import measure_speed, widens_bfloat16

for path in (FOLDER / LIBRARY_NAME, *CACHE.glob(f"{source_hash()}-*.so")):
    if path.exists():
        library, fault = open_library(path)
        if library is not None:
            found["library"] = {
                "path": str(path),
                "isa": library.core_kernels_isa().decode(),
                "best": library.best_variant,
                "variants": library.variants,
                "widens": widens_bfloat16(library),
            }
            library.core_kernels_threads(torch.get_num_threads())
            for kind in ("bfloat16", "int8"):
                found["library"][kind] = asdict(measure_speed(library, kind))
            break
        found["faults"].append(fault)
print(json.dumps(found))
"""


def check_torch(script: str = PROBE) -> Iterator[Finding]:
    """Check torch, its devices and the kernel library in a subprocess."""
    found = _probe(script)
    if isinstance(found, str):
        yield Finding(
            "fail",
            "torch",
            found,
            "Install a build for this machine and its drivers",
        )
        return
    build = f"for CUDA or ROCm {found['cuda']}" if found["cuda"] else "for CPUs"
    yield judge(
        "torch",
        f"{found['torch']}, built {build}, {found['threads']} threads",
        warn=not found["openmp"],
        advice="It is built without OpenMP and uses one thread",
    )
    yield from _devices(found)
    yield from _kernels(found)


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


def _kernels(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Report the library and what it measured; it is not built here."""
    library = found["library"]
    if library is not None:
        yield judge(
            "kernels",
            f"{library['isa']}, from {library['path']}",
            warn=library["best"] not in library["variants"],
            advice=f"Built without {library['best']}, the best of this processor: python -m "
            "core_kernels.build",
        )
        yield Finding("ok", "speed", _speed(library))
        return
    compiler = find_compiler()
    faults = "; ".join(found["faults"]) or "no library"
    if compiler:
        text = f"{faults}; built with {compiler} at the next start, in about a minute"
        yield Finding("warn", "kernels", text)
    else:
        text = f"{faults}, and no compiler: torch ops are used instead"
        yield Finding("warn", "kernels", text, "Install g++")


def _speed(library: Mapping[str, Any]) -> str:
    """Return what one row and many rows multiply per second, and what is faster on this machine."""
    sizes = {"bfloat16": 2, "int8": 1}
    texts = [
        f"{kind} weights at {library[kind]['decode_bytes'] / 1e9:.1f} GB/s by one row, "
        f"{2 * library[kind]['prefill_bytes'] / size / 1e9:.0f} GFLOP/s by many"
        for kind, size in sizes.items()
    ]
    if library["widens"]:
        texts.append("bfloat16 is widened to float32 on this processor")
        numbers = {kind: library[kind]["decode_bytes"] / size for kind, size in sizes.items()}
        if numbers["int8"] > numbers["bfloat16"]:
            texts[-1] += ": --quantization int8 is faster"
    return "; ".join(texts)


def check_compiler() -> Iterator[Finding]:
    """Check whether kernels can be built."""
    compiler = find_compiler()
    yield Finding(
        "ok", "compiler", compiler or "none (needed only where no kernel library is installed)"
    )


def check_dependencies() -> Iterator[Finding]:
    """Check dependency versions against the ranges in the package metadata."""
    own = _own()
    if own is None:
        return
    wrong: list[str] = []
    versions: list[str] = []
    for requirement in map(Requirement, own.requires or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = distribution(requirement.name).version
        except PackageNotFoundError:
            wrong.append(f"{requirement} is not installed")
            continue
        versions.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        yield Finding(
            "fail",
            "dependencies",
            "; ".join(wrong),
            f"Run pip install --upgrade {DISTRIBUTION}",
        )
    yield Finding("ok", "versions", ", ".join(sorted(versions)))


def check_installation() -> Iterator[Finding]:
    """Check the engine's files, its metadata, and packages that shadow it."""
    home = Path(core.__file__).resolve().parent
    own = _own()
    if own is None:
        yield Finding(
            "fail",
            "engine",
            f"{core.__version__} in {home} is not installed",
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
            f"{foreign} shadows the engine for Python scripts in this folder",
            "Rename it",
        )


def _metadata(own: Distribution, project: Path) -> Iterator[Finding]:
    """Compare the installed entry points with those of the source tree, if present."""
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
    """Return the script's JSON output, or a sentence that describes its failure."""
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
        return f"importing it kills the process with {signal.Signals(-done.returncode).name}"
    if done.returncode > 0:
        return (
            f"cannot be imported: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


PREFIX: Final = "ENGINE_"
VLLM_PREFIX: Final = "VLLM_"
LIBRARY_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "LD_PRELOAD",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "TMPDIR",
)
"""Variables of libraries that affect the engine."""
SECRET_SUFFIXES: Final = ("TOKEN", "KEY")


def check_environment(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check which variables are set, misspelled, or without effect."""
    known = (CONFIG_FILE, *ENVIRONMENT_FIELDS)
    active = [name for name in sorted((*known, *LIBRARY_VARIABLES)) if environment.get(name)]
    settings = (
        f"{name}={'***' if name.endswith(SECRET_SUFFIXES) else environment[name]}"
        for name in active
    )
    yield Finding("ok", "environment", ", ".join(settings) or "no relevant variable is set")
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            hint = did_you_mean(name, known)
            yield Finding(
                "warn", "environment", f"{name} is unknown{hint}", f"Known: {', '.join(known)}"
            )
    foreign = sorted(name for name in environment if name.startswith(VLLM_PREFIX))
    if foreign:
        yield Finding(
            "warn",
            "environment",
            f"ignored: {', '.join(foreign)}",
            "Use flags or a --config file",
        )


def check_plugins(context: CommandContext) -> Iterator[Finding]:
    """Load all plugins; after a failure each alone, to name every broken one."""
    try:
        plan = context.plan
    except EngineError as error:
        yield Finding("fail", "plugins", str(error))
        return
    third = [str(ref) for ref in plan.plugins if not ref.builtin]
    text = f"{len(plan.plugins)} on, third-party: {', '.join(third) or 'none'}"
    yield judge(
        "plugins",
        text + (f"; absent: {', '.join(plan.absent)}" if plan.absent else ""),
        warn=bool(plan.absent),
        advice="Builtin plugins are missing. Reinstall the engine unless this is intended",
    )
    combined = _load_error(context)
    if combined:
        errors = [_load_error(_with_only(context, ref)) for ref in plan.plugins]
        for message in filter(None, errors) if any(errors) else [combined]:
            yield Finding("fail", "plugins", message)


def _load_error(context: CommandContext) -> str:
    """Return the error of loading the plugins of a context; empty on success."""
    try:
        _ = context.registry
    except EngineError as error:
        return str(error)
    return ""


def _with_only(context: CommandContext, ref: Any) -> Any:
    """Return a context with one plugin and the kernel plugin."""
    name = ref.name if ref.distribution else ref.target
    selection = replace(context.config.plugins, plugins=["none", name], plugins_lock=None)
    return replace(context, config=replace(context.config, plugins=selection), loaded=None)
