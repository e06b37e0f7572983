"""Compiles the C++ kernels into one shared library. Needs a C++ compiler and the standard library
only.

`python build.py` builds the variants of this processor next to this file, `python build.py --all`
every variant; without a compiler neither does anything. `setup.py` uses the same functions for the
wheel, and the loader for a machine that has no library.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

LIBRARY_NAME: Final = "libcore_kernels.so"
FOLDER: Final = Path(__file__).parent
SOURCE_FOLDER: Final = FOLDER / "cpu"
_ROOT: Final = FOLDER.parents[1]
_IN_CHECKOUT: Final = (_ROOT / "pyproject.toml").is_file()
CACHE: Final = Path.home() / ".cache" / "core_kernels"
OBJECTS: Final = _ROOT / "build" / "kernels" if _IN_CHECKOUT else CACHE / "objects"
"""Folder of compiled files."""
COMPILERS: Final = ("c++", "g++", "clang++")
CROSS_COMPILERS: Final = {"aarch64": "aarch64-linux-gnu-g++", "x86_64": "x86_64-linux-gnu-g++"}
"""By architecture: the compiler that Debian's packages install on machines of another one."""
FLAGS: Final = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-Wno-psabi",
)
SOURCES: Final = (
    "quant/superblocks",
    "gemm/low_rank",
    "attention/attention",
    "quant/quantized",
    "quant/floats",
    "elementwise/row_ops",
    "elementwise/elementwise",
    "attention/selection",
    "gemm/linear",
    "elementwise/sampling",
)
"""Compiled once per variant; those that take longest first, so that all cores end together."""
TILE_SOURCES: Final = ("attention/attention", "quant/quantized", "quant/floats", "gemm/linear")
"""Sources that use tile registers."""
INTEGER_SOURCES: Final = ("quant/superblocks", "quant/quantized")
"""Sources that use dot products of integers."""
BYTE_SOURCES: Final = ("quant/superblocks",)
"""Sources that use dot products of bytes where others of integers are as fast."""
PAIR_SOURCES: Final = ("attention/attention", "quant/floats", "gemm/linear")
"""Sources that use dot products of bfloat16."""
ONCE: Final = (
    "dispatch",
    "processor",
    "elementwise/checksum_copy",
    "threading/pool",
    "attention/shared_prefix",
    "gemm/tile_check",
)
"""Compiled once: the same for all variants."""
PROBE: Final = ("processor", "gemm/tile_check")
"""Sources that tell which variants a processor runs."""
TIMEOUT_S: Final = 1800
"""Per file. Seconds on an idle machine, a hundred times more on a busy one."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernels for one instruction set."""

    flags: tuple[str, ...] = ()
    sources: tuple[str, ...] = SOURCES
    base: str = ""
    """The variant that has the tables of the other sources."""


_AVX2: Final = ("-mavx2", "-mfma", "-mf16c")
_AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
_VNNI: Final = (*_AVX512, "-mavx512vnni")
_TILES: Final = (*_VNNI, "-mavx512bf16", "-DTILE_REGISTERS")
X86: Final = {
    "generic": Variant(),
    "avx2": Variant(_AVX2),
    "avx2_vnni": Variant((*_AVX2, "-mavxvnni"), INTEGER_SOURCES, "avx2"),
    "avx512": Variant(_AVX512),
    "avx512_vnni": Variant(_VNNI, INTEGER_SOURCES, "avx512"),
    "avx512_bf16": Variant((*_VNNI, "-mavx512bf16")),
    "amx": Variant(_TILES, TILE_SOURCES, "avx512_bf16"),
    "amx_emulated": Variant((*_TILES, "-DEMULATED_TILES"), TILE_SOURCES, "avx512_bf16"),
}
_DOTPROD: Final = "-march=armv8.2-a+dotprod"
ARM: Final = {
    "generic": Variant(),
    "neon_dotprod": Variant((_DOTPROD,), BYTE_SOURCES, "generic"),
    "neon_i8mm": Variant((f"{_DOTPROD}+i8mm",), BYTE_SOURCES, "generic"),
    "neon_bf16": Variant((f"{_DOTPROD}+i8mm+bf16",), PAIR_SOURCES, "neon_i8mm"),
}
ARCHITECTURES: Final = {"x86_64": X86, "aarch64": ARM}
ARCHITECTURE: Final = {"amd64": "x86_64", "arm64": "aarch64"}.get(
    platform.machine().lower(), platform.machine().lower()
)
"""This machine's architecture."""
VARIANTS: Final = ARCHITECTURES.get(ARCHITECTURE, {"generic": Variant()})
"""What this machine's compiler can build, whether or not the processor runs it."""


class BuildError(Exception):
    """The library was not built; the text says why."""


def find_compiler(architecture: str = ARCHITECTURE) -> str | None:
    """Return the path of a C++ compiler for this or another architecture, or None."""
    names = COMPILERS if architecture == ARCHITECTURE else (CROSS_COMPILERS[architecture],)
    return next((path for name in names if (path := shutil.which(name))), None)


def source_hash(variants: Mapping[str, Variant] = VARIANTS) -> str:
    """Return a short hash of the sources: part of the library and of the name of a cached one."""
    digest = hashlib.sha256(repr((FLAGS, dict(variants), ONCE)).encode())
    for path in sorted((*SOURCE_FOLDER.rglob("*.cpp"), *SOURCE_FOLDER.rglob("*.h"))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def probe_processor(objects: Path) -> ctypes.CDLL:
    """Return a library with `core_kernels_best` and `core_kernels_runs` only, compiled in a
    second.

    `objects`: folder of compiled files. Raises `BuildError`.
    """
    library = objects / f"processor.{source_hash()}.so"
    if not library.exists():
        made = _Objects(_compiler(), objects)
        made.link([made.compiled(source) for source in PROBE], library)
    probe = ctypes.CDLL(str(library))
    probe.core_kernels_best.restype = ctypes.c_char_p
    probe.core_kernels_runs.argtypes = (ctypes.c_char_p,)
    return probe


def compile_library(
    target: Path, variants: Iterable[str], objects: Path, architecture: str = ARCHITECTURE
) -> None:
    """Build the library at `target`, atomically, with these variants and their bases.

    `objects` keeps compiled files: a variant that it has costs no second compilation. For another
    architecture it uses a cross compiler. Raises `BuildError`.
    """
    known = VARIANTS if architecture == ARCHITECTURE else ARCHITECTURES[architecture]
    names = with_bases(variants, known)
    made = _Objects(
        _compiler(architecture), objects if known is VARIANTS else objects / architecture
    )
    steps = [
        partial(made.compiled, source, name, known[name].flags)
        for source in SOURCES
        for name in names
        if source in known[name].sources
    ]
    defined = (f'-DSOURCE_HASH="{source_hash(known)}"', *(f"-DBUILT_{name}" for name in names))
    steps += [
        partial(made.compiled, source, flags=defined if source == "dispatch" else ())
        for source in ONCE
    ]
    with ThreadPoolExecutor(min(len(steps), _usable_cores())) as pool:
        running = [pool.submit(step) for step in steps]
        try:
            parts = [step.result() for step in running]
        except BuildError:
            pool.shutdown(cancel_futures=True)
            raise
    made.link(parts, target)


def with_bases(variants: Iterable[str], known: Mapping[str, Variant] = VARIANTS) -> list[str]:
    """Return the variants and those that have the rest of their tables, each once."""
    named: set[str] = set()
    for name in variants:
        while name and name not in named:
            named.add(name)
            name = known[name].base
    return [name for name in known if name in named]


class _Objects:
    """Compiled files in a folder, named by a hash of everything that they depend on."""

    def __init__(self, compiler: str, folder: Path) -> None:
        self._compiler = compiler
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
        self._common = hashlib.sha256(compiler.encode() + version)
        for header in sorted(SOURCE_FOLDER.rglob("*.h")):
            self._common.update(header.name.encode() + header.read_bytes())

    def compiled(self, source: str, variant: str = "", flags: Sequence[str] = ()) -> Path:
        """Return the object file of a source, compiled now if it is new."""
        path = SOURCE_FOLDER / f"{source}.cpp"
        command = [*FLAGS, *flags, *([f"-DVARIANT={variant}"] if variant else [])]
        digest = self._common.copy()
        digest.update(" ".join(command).encode() + path.read_bytes())
        stem = f"{path.stem}_{variant}" if variant else path.stem
        found = self._folder / f"{stem}.{digest.hexdigest()[:16]}.o"
        if not found.exists():
            older = list(self._folder.glob(f"{stem}.*.o"))
            self._make([*command, f"-I{FOLDER}", "-c", str(path)], found)
            for each in older:
                each.unlink(missing_ok=True)
        return found

    def link(self, parts: Sequence[Path], target: Path) -> None:
        """Link a shared library."""
        self._make(["-shared", "-pthread", *map(str, parts), "-lm"], target)

    def _make(self, arguments: list[str], target: Path) -> None:
        """Run the compiler; its output appears at `target` once it is complete."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            command = [self._compiler, *arguments, "-o", str(made)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise BuildError(f"{self._compiler}: {error}") from error
            if done.returncode != 0:
                raise BuildError(f"{' '.join(command)}\n{done.stderr.strip()}")
            os.replace(made, target)


def _compiler(architecture: str = ARCHITECTURE) -> str:
    compiler = find_compiler(architecture)
    if compiler is None and architecture != ARCHITECTURE:
        raise BuildError(f"no {CROSS_COMPILERS[architecture]} found")
    if compiler is None:
        raise BuildError(f"no C++ compiler found (looked for {', '.join(COMPILERS)})")
    return compiler


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def sole_builder(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of builds in a folder; call `waiting` once if another process has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Build next to the sources. A failure is only reported: plain torch ops do the same work."""
    parser = argparse.ArgumentParser(description="Compile the C++ kernels next to their sources.")
    parser.add_argument(
        "variants",
        nargs="*",
        metavar="VARIANT",
        help=f"in addition to this processor's own and generic: {', '.join(VARIANTS)}",
    )
    parser.add_argument("--all", action="store_true", help="build every variant")
    parser.add_argument(
        "--runnable", action="store_true", help="leave out what this processor cannot run"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.variants if name not in VARIANTS]:
        parser.error(f"got {', '.join(unknown)}; expected some of {', '.join(VARIANTS)}.")
    target = FOLDER / LIBRARY_NAME
    try:
        with sole_builder(OBJECTS, lambda: _say("C++ kernels: waiting for another build.")):
            probe = probe_processor(OBJECTS)
            names = {*options.variants, "generic", str(probe.core_kernels_best().decode())}
            names |= set(VARIANTS) if options.all else set()
            if options.runnable:
                names = {name for name in names if probe.core_kernels_runs(name.encode())}
            compile_library(target, names, OBJECTS)
    except (BuildError, OSError) as error:
        sys.stderr.write(f"C++ kernels not built, going on without them: {error}\n")
    else:
        _say(f"C++ kernels: {', '.join(with_bases(names))} in {target}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
