"""Finds, builds and loads the shared library.

Knows its ABI number, its functions and its location.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import threading
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from core_kernels.build import FOLDER, LIBRARY_NAME, compile_library, source_hash
from core_kernels.large_pages import LargePages

logger = logging.getLogger(__name__)

ABI: Final = 10
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


def load_library() -> Library | None:
    """Return the installed library, or one that is built now and cached for the user.

    It uses as many threads as torch does at this moment. Returns None after one warning with the
    reason if neither is available.
    """
    installed = FOLDER / LIBRARY_NAME
    cached = cache_path()
    failure = ""
    for path in (installed, cached):
        if path.exists() or (path is cached and not (failure := _build(path))):
            library, failure = open_library(path)
            if library is not None:
                library.core_kernels_threads(torch.get_num_threads())
                return library
    logger.warning(
        "C++ kernels are not available (%s); plain torch does their work, more slowly. Install g++ "
        "and start again.",
        failure,
    )
    return None


def cache_path() -> Path:
    """Return the path of the library that is built on first use; the name depends on the
    sources.
    """
    return Path.home() / ".cache" / "core_kernels" / f"{source_hash()}.so"


@cache
def open_library(path: Path) -> tuple[Library | None, str]:
    """Return (library, "") or (None, reason).

    A process loads each path once.
    """
    try:
        library = Library(str(path))
        library.core_kernels_abi.restype = _I32
        if (abi := library.core_kernels_abi()) != ABI:
            return None, f"{path} has ABI {abi}, this version needs {ABI}"
        library.core_kernels_isa.restype = ctypes.c_char_p
        library.core_kernels_use.argtypes = (ctypes.c_char_p,)
        library.core_kernels_match.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
        library.core_kernels_warning.restype = ctypes.c_char_p
        if warning := library.core_kernels_warning().decode():
            logger.warning("C++ kernels: %s.", warning)
        for name in SIGNATURES:
            setattr(library, name, Function(library, name))
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be loaded: {error}"
    return library, ""


def _build(target: Path) -> str:
    """Build the library unless another process does or did: engine processes start together."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return "" if target.exists() else compile_library(target) or ""
    except OSError as error:
        return f"{target.parent}: {error}"
