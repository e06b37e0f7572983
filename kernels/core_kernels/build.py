"""Compiles the C++ kernels into one shared library. Needs a C++ compiler and the standard library
only.

`python build.py` builds the library next to this file, or does nothing without a compiler.
`setup.py` uses the same functions for the wheel.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

LIBRARY_NAME: Final = "libcore_kernels.so"
FOLDER: Final = Path(__file__).parent
SOURCE_FOLDER: Final = FOLDER / "cpu"
COMPILERS: Final = ("c++", "g++", "clang++")
FLAGS: Final = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-Wno-psabi",
    f"-I{FOLDER}",
)
VARIANTS: Final = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        AVX512 := ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
    ),
    "avx512_bf16": (PAIRS := (*AVX512, "-mavx512bf16", "-mavx512vnni")),
    "amx": (TILES := (*PAIRS, "-DTILE_REGISTERS")),
    "amx_emulated": (*TILES, "-DEMULATED_TILES"),
}
PRODUCTS: Final = ("gemm/linear", "quant/quantized", "quant/floats", "attention/attention")
"""Compiled once per variant."""
SOURCES: Final = (
    *PRODUCTS,
    "quant/superblocks",
    "gemm/low_rank",
    "elementwise/row_ops",
    "elementwise/elementwise",
    "elementwise/sampling",
)
"""Compiled once per variant except `amx`, which matters for matrix products only."""
ONCE: Final = (
    "dispatch",
    "elementwise/checksum_copy",
    "threading/pool",
    "attention/shared_prefix",
    "gemm/tile_check",
)
"""Compiled once: the same for all variants."""
TIMEOUT_S: Final = 1800
"""Per file. Seconds on an idle machine, a hundred times more on a busy one."""


def find_compiler() -> str | None:
    """Return the path of a C++ compiler, or None."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def source_hash() -> str:
    """Return a short hash of the sources, the name of a cached library."""
    digest = hashlib.sha256()
    for path in sorted((*FOLDER.rglob("*.cpp"), *FOLDER.rglob("*.h"), Path(__file__))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(target: Path) -> str | None:
    """Build the library at `target`, atomically; return the error, or None."""
    compiler = find_compiler()
    if compiler is None:
        return f"no C++ compiler found (looked for {', '.join(COMPILERS)})"
    names = list(VARIANTS) if platform.machine().lower() in ("x86_64", "amd64") else ["generic"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        failure = _compile([compiler, *FLAGS], names, Path(folder))
        if failure is None:
            os.replace(Path(folder) / LIBRARY_NAME, target)
        return failure


def _compile(command: list[str], names: list[str], folder: Path) -> str | None:
    """Compile one object per variant and the dispatcher, then link; return the error, or None."""
    parts = {
        f"{Path(source).name}_{name}.o": (source, name)
        for name in names
        for source in (PRODUCTS if name.startswith("amx") else SOURCES)
    }
    steps = [
        [
            *command,
            *VARIANTS[name],
            f"-DVARIANT={name}",
            "-c",
            str(SOURCE_FOLDER / f"{source}.cpp"),
            "-o",
            part,
        ]
        for part, (source, name) in parts.items()
    ]
    alone = [f"{Path(source).name}.o" for source in ONCE]
    steps += [
        [*command, "-c", str(SOURCE_FOLDER / f"{source}.cpp"), "-o", part]
        for source, part in zip(ONCE, alone, strict=True)
    ]
    with ThreadPoolExecutor(min(len(steps), os.cpu_count() or 1)) as pool:
        for failure in pool.map(partial(_run, folder=folder), steps):
            if failure is not None:
                pool.shutdown(cancel_futures=True)
                return failure
    return _run(
        [command[0], "-shared", "-pthread", "-o", LIBRARY_NAME, *parts, *alone, "-lm"], folder
    )


def _run(step: list[str], folder: Path) -> str | None:
    try:
        done = subprocess.run(
            step, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{step[0]}: {error}"
    return None if done.returncode == 0 else f"{' '.join(step)}\n{done.stderr.strip()}"


def main() -> int:
    """Build next to the sources. A failure is only reported: plain torch ops do the same work."""
    target = FOLDER / LIBRARY_NAME
    if failure := compile_library(target):
        sys.stderr.write(f"C++ kernels not built, going on without them: {failure}\n")
    else:
        sys.stdout.write(f"C++ kernels: {target}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
