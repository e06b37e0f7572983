"""Finds, or builds, and loads the shared library.

Knows its ABI number, its functions and where it may lie.
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
from core_kernels.pages import LargePages

logger = logging.getLogger(__name__)

ABI: Final = 9
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
    "core_copy_summed": (_PTR, _PTR, _PTR, _I64, _PTR),
    "core_widen": (_PTR, _PTR, _I64, _I64, _I64, _I32),
    "core_best": (_PTR, _PTR, _PTR, _I64, _I64, _I64),
    "core_draw": (_PTR, _PTR, _PTR, _I64, _I64, _I64),
    "core_pack": (_PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_unpack": (_PTR, _PTR, _PTR, _I64, _I64, _I64, _I32),
    "core_linear": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_plain_linear": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_grouped_linear": (_PTR, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_quantize": (_PTR, _PTR, _I64, _I64, _I64, _I64, _I64, _I64, _I64, _I64, _I32),
    "core_quantized_place": (_PTR, _PTR, _PTR, _PTR, _PTR, *[_I64] * 9),
    "core_quantized_rows": (_PTR, _PTR, _PTR, *[_I64] * 7, _I32),
    "core_quantized_linear": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 9, _I32),
    "core_quantized_grouped": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 9, _I32),
    "core_floats_place": (_PTR, _PTR, _PTR, _PTR, *[_I64] * 7, _I32),
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
    "core_paged_attention_again": (_PTR, _PTR),
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
"""What functions return that return something."""


class Listener(Protocol):
    """Told of every call while it is the library's `listener`."""

    def called(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Take note of a call that has been made."""

    def refuse(self, reason: str) -> None:
        """Take note that what is done now cannot be done again."""


class Library(ctypes.CDLL):
    """The library, its functions as attributes."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._of_thread: Final = threading.local()

    @property
    def pages(self) -> LargePages:
        """Where weights that this thread makes lie together, of whatever kind."""
        if not hasattr(self._of_thread, "pages"):
            self._of_thread.pages = LargePages(self)
        found: LargePages = self._of_thread.pages
        return found

    @property
    def listener(self) -> Listener | None:
        """Who is told of this thread's calls."""
        return getattr(self._of_thread, "listener", None)

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._of_thread.listener = listener


class Function:
    """One function of the library, whose calls may be listened to."""

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
    """Return the library: the one installed, or else one built now and kept in the user's cache.

    It computes with as many threads as torch does by now; they are its own.
    None, with one warning that says why, when neither is to be had.
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
    """Return where a library built on first use is kept; other sources, another name."""
    return Path.home() / ".cache" / "core_kernels" / f"{source_hash()}.so"


@cache
def open_library(path: Path) -> tuple[Library | None, str]:
    """Return (library, "") or (None, what is wrong with the file).

    A process has one library of a path.
    """
    try:
        library = Library(str(path))
        library.core_kernels_abi.restype = _I32
        if (abi := library.core_kernels_abi()) != ABI:
            return None, f"{path} has ABI {abi}, this version needs {ABI}"
        library.core_kernels_isa.restype = ctypes.c_char_p
        library.core_kernels_use.argtypes = (ctypes.c_char_p,)
        library.core_kernels_agree.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
        library.core_kernels_warning.restype = ctypes.c_char_p
        if warning := library.core_kernels_warning().decode():
            logger.warning("C++ kernels: %s.", warning)
        for name in SIGNATURES:
            setattr(library, name, Function(library, name))
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be loaded: {error}"
    return library, ""


def _build(target: Path) -> str:
    """Build it unless somebody else does, or just has: an engine's processes start together."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return "" if target.exists() else compile_library(target) or ""
    except OSError as error:
        return f"{target.parent}: {error}"
