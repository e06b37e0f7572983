"""Finds, builds and loads the shared library.

Knows its ABI number, its functions and its location.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from core_kernels.build import (
    CACHE,
    FOLDER,
    LIBRARY_NAME,
    VARIANTS,
    BuildError,
    compile_library,
    probe_processor,
    sole_builder,
    source_hash,
)
from core_kernels.large_pages import LargePages

logger = logging.getLogger(__name__)

ABI: Final = 13
_I32 = ctypes.c_int32
_I64 = ctypes.c_int64
_F32 = ctypes.c_float
_PTR = ctypes.c_void_p
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "core_rms_norm": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _F32, _F32, _I32),
    "core_add_rms_norm": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _F32, _F32, _I32),
    "core_gated": (_PTR, _PTR, _I64, _I64, _I64, _I32, _I32),
    "core_rotary": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _I32, _I32),
    "core_elementwise": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _F32, _I32, _I32),
    "core_layer_norm": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _F32, _I32),
    "core_take_rows": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I64),
    "core_checksum_copy": (_PTR, _PTR, _PTR, _I64, _PTR),
    "core_widen": (_PTR, _PTR, _I64, _I64, _I64, _I32),
    "core_argmax": (_PTR, _PTR, _PTR, _I64, _I64, _I64),
    "core_sample": (_PTR, _PTR, _PTR, _I64, _I64, _I64),
    "core_pack": (_PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_unpack": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I32),
    "core_linear": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_plain_linear": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_grouped_linear": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_quantize": (_PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_quantized_pack_codes": (_PTR, _PTR, _PTR, _PTR, _PTR, *[_I64] * 9),
    "core_quantized_rows": (_PTR, _PTR, _PTR, *[_I64] * 7, _I32),
    "core_quantized_linear": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 9, _I32),
    "core_quantized_grouped": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 9, _I32),
    "core_floats_pack_codes": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 7, _I32),
    "core_floats_rows": (_PTR, _PTR, _PTR, *[_I64] * 5, _I32, _PTR, _I32),
    "core_floats_linear": (_PTR, _PTR, _PTR, *[_I64] * 6, _I32, _PTR, _I32),
    "core_floats_grouped": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 6, _I32, _PTR, _I32),
    "core_superblock_pack": (_PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_superblock_rows": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I32, _I32),
    "core_superblock_linear": (_PTR, _PTR, _PTR, *[_I64] * 5, _I32, _I32, _I32),
    "core_superblock_grouped": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 5, _I32, _I32, _I32),
    "core_low_rank": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 6, _I32),
    "core_plan_attention": (_PTR, _PTR, _PTR),
    "core_paged_attention": (_PTR,),
    "core_paged_attention_replay": (_PTR, _PTR),
    "core_select_tokens": (_PTR, _I32),
    "core_copy_keys": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I32),
    "core_program_number": (ctypes.c_char_p,),
    "core_program_run": (_PTR, _I64),
    "core_large_pages": (_PTR, _I64),
    "core_touch": (_PTR, _I64),
    "core_kernels_threads": (_I64,),
}
RESULTS: Final = {
    "core_unpack": _I32,
    "core_quantized_rows": _I32,
    "core_floats_rows": _I32,
    "core_superblock_pack": _I32,
    "core_superblock_rows": _I32,
    "core_take_rows": _I32,
    "core_program_number": _I64,
    "core_program_run": _I64,
}
"""Return types; functions that are not listed return nothing."""
WAITING: Final = "C++ kernels: waiting for another process that builds them in %s."
BUILDING: Final = (
    "C++ kernels: %s. Building the %s kernels in %s, once; this takes about a minute on two cores."
)


class CallListener(Protocol):
    """Receives every call of a thread while it is the library's `listener`."""

    def called(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Called after a library call."""

    def refuse(self, reason: str) -> None:
        """Called when the current operation cannot be replayed."""


class Library(ctypes.CDLL):
    """The shared library with its functions as attributes."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._of_thread: Final = threading.local()

    @property
    def variants(self) -> list[str]:
        """The variants that the library was built with, the fastest first."""
        return str(self.core_kernels_variants().decode()).split()

    @property
    def best_variant(self) -> str:
        """The fastest variant of this processor, whether or not the library has it."""
        return str(self.core_kernels_best().decode())

    @property
    def pages(self) -> LargePages:
        """Allocator of this thread's weights."""
        if not hasattr(self._of_thread, "pages"):
            self._of_thread.pages = LargePages(self)
        found: LargePages = self._of_thread.pages
        return found

    @property
    def listener(self) -> CallListener | None:
        """CallListener of this thread's calls."""
        return getattr(self._of_thread, "listener", None)

    @listener.setter
    def listener(self, listener: CallListener | None) -> None:
        self._of_thread.listener = listener


class Function:
    """One function of the library, with call listening."""

    __slots__ = ("_function", "_library", "_name")

    def __init__(self, library: Library, name: str) -> None:
        self._library = library
        self._name = name
        self._function: Final = library[name]
        self._function.argtypes = SIGNATURES[name]
        self._function.restype = RESULTS.get(name)

    def __call__(self, *arguments: Any) -> Any:
        result = self._function(*arguments)
        listener = self._library.listener
        if listener is not None:
            listener.called(self._name, arguments)
        return result


class _Selection:
    """What this process computes with: one library, as any extension module is one."""

    isa: str = ""
    """The instruction set that `use_isa` was called with; empty: the best one."""
    library: Library | None = None
    """The library that was loaded last; other modules keep its functions."""


def use_isa(isa: str) -> None:
    """Make `load_library` compute on this instruction set from now on; empty: on the best one.

    Raises `ValueError` if the processor lacks it, or if it cannot be built.
    """
    if not isa:
        _use_best()
        return
    if isa not in VARIANTS:
        raise ValueError(f"got {isa}; expected one of {', '.join(VARIANTS)}")
    library, failure = _find(isa)
    if library is None:
        raise ValueError(f"got {isa}; {failure}")
    if _Selection.library not in (None, library):
        raise ValueError(
            f"got {isa}; this process already computes with a library without it. Start a new "
            "process"
        )
    _Selection.isa = isa


def _use_best() -> None:
    library = _Selection.library
    if _Selection.isa and library is not None:
        any(library.core_kernels_use(name.encode()) for name in library.variants)
    _Selection.isa = ""


def load_library() -> Library | None:
    """Return the installed library, or one that is built now and cached for the user.

    It uses as many threads as torch does at this moment. Only the variant that this process needs
    is built. Returns None after one warning with the reason if neither is available.
    """
    library, failure = _find(_Selection.isa)
    if library is None:
        logger.warning(
            "C++ kernels are not available (%s); plain torch does their work, more slowly. "
            "Install g++ and start again.",
            failure,
        )
        return None
    _Selection.library = library
    if _Selection.isa:
        library.core_kernels_use(_Selection.isa.encode())
    library.core_kernels_threads(torch.get_num_threads())
    return library


def _find(isa: str) -> tuple[Library | None, str]:
    """Return (a library with this variant, "") or (None, reason); an empty one is the best."""
    installed = FOLDER / LIBRARY_NAME
    library, failure = open_library(installed)
    if library is None:
        return _open_cached(isa, failure)
    if not isa or isa in library.variants:
        lacks = bool(isa) and not library.core_kernels_runs(isa.encode())
        return (None, f"this processor has no {isa}") if lacks else (library, "")
    return _open_cached(isa, f"{installed} was built without {isa}")


def cache_path(variant: str) -> Path:
    """Return the path of a library that is built on first use; the name depends on the
    sources.
    """
    return CACHE / f"{source_hash()}-{variant}.so"


@cache
def open_library(path: Path) -> tuple[Library | None, str]:
    """Return (library, "") or (None, reason).

    A process loads each path once. Warns if the library is not the best one for this processor or
    these sources.
    """
    if not path.exists():
        return None, f"there is no {path}"
    try:
        library = Library(str(path))
        library.core_kernels_abi.restype = _I32
        if (abi := library.core_kernels_abi()) != ABI:
            return None, f"{path} was built for other sources: ABI {abi}, this version needs {ABI}"
        for name in ("best", "isa", "sources", "variants", "warning"):
            getattr(library, f"core_kernels_{name}").restype = ctypes.c_char_p
        library.core_kernels_use.argtypes = (ctypes.c_char_p,)
        library.core_kernels_runs.argtypes = (ctypes.c_char_p,)
        library.core_kernels_match.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
        for name in SIGNATURES:
            setattr(library, name, Function(library, name))
        if not library.core_kernels_isa():
            return None, f"{path} has no variant for this processor: {library.variants}"
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be loaded: {error}"
    _warn_about(library, path)
    return library, ""


def _warn_about(library: Library, path: Path) -> None:
    if warning := library.core_kernels_warning().decode():
        logger.warning("C++ kernels: %s.", warning)
    if library.core_kernels_sources().decode() != source_hash():
        logger.warning(
            "C++ kernels: %s was built from other sources; used nevertheless. "
            "`python -m core_kernels.build` builds it anew.",
            path,
        )
    if path.name == LIBRARY_NAME and library.best_variant not in library.variants:
        logger.warning(
            "C++ kernels: %s was built without %s, this processor's best instruction set; using "
            "%s. `python -m core_kernels.build` adds it.",
            path,
            library.best_variant,
            library.core_kernels_isa().decode(),
        )


def _open_cached(isa: str, lacks: str) -> tuple[Library | None, str]:
    """Return the library that is built on first use; engine processes start together."""
    objects = CACHE / "objects"
    try:
        with sole_builder(CACHE, lambda: logger.warning(WAITING, CACHE)):
            probe = probe_processor(objects)
            if isa and not probe.core_kernels_runs(isa.encode()):
                return None, f"this processor has no {isa}"
            variant = isa or str(probe.core_kernels_best().decode())
            path = cache_path(variant)
            if not path.exists():
                logger.warning(BUILDING, lacks, variant, CACHE)
                compile_library(path, [variant], objects)
    except (BuildError, OSError) as error:
        return None, f"{lacks}; {error}"
    return open_library(path)
