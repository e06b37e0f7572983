"""The library is found installed, else built once into the user's cache, else missed with one
warning. A process builds the one variant that it needs, and says so.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from core_kernels import build, library

INSTALLED = build.FOLDER / build.LIBRARY_NAME
OWN = "own"

needs_library = pytest.mark.skipif(not INSTALLED.exists(), reason="no C++ library on this machine")
needs_compiler = pytest.mark.skipif(
    build.find_compiler() is None, reason="no C++ compiler on this machine"
)

Builds = list[tuple[Path, list[str]]]


class FakeProcessor:
    """Runs every variant but `amx`."""

    def __init__(self, objects: Path) -> None:
        del objects

    def core_kernels_best(self) -> bytes:
        return OWN.encode()

    def core_kernels_runs(self, variant: bytes) -> bool:
        return variant != b"amx"


@pytest.fixture(autouse=True)
def nothing_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a process does, and leave the selection of other tests alone."""
    monkeypatch.setattr(library._Selection, "isa", "")
    monkeypatch.setattr(library._Selection, "library", None)
    installed, _ = library.open_library(INSTALLED)
    if installed is not None:  # perhaps older than the sources, which is no matter here
        sources = installed.core_kernels_sources().decode()
        monkeypatch.setattr(library, "source_hash", lambda: sources)


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the user an empty cache."""
    monkeypatch.setattr(library, "CACHE", tmp_path / "cache")
    return tmp_path


@pytest.fixture
def no_installed_library(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the library next to the package."""
    monkeypatch.setattr(library, "FOLDER", empty_home / "package")
    return empty_home


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """Builds copy the installed library instead, and are listed here."""
    made: Builds = []

    def copied(target: Path, variants: list[str], objects: Path) -> None:
        del objects
        shutil.copy(INSTALLED, target)
        made.append((target, variants))

    monkeypatch.setattr(library, "compile_library", copied)
    monkeypatch.setattr(library, "probe_processor", FakeProcessor)
    return made


def test_missing_compiler_logs_one_warning(
    no_installed_library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        assert library.load_library() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no C++ compiler found (looked for c++, g++, clang++)" in caplog.text
    assert "Install g++" in caplog.text


@needs_library
def test_own_variant_is_built_once_into_the_cache(
    no_installed_library: Path, builds: Builds, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert library.load_library() is not None
        assert library.load_library() is not None
    assert builds == [(library.cache_path(OWN), [OWN])]
    assert library.cache_path(OWN).is_relative_to(no_installed_library)
    (line,) = [record.message for record in caplog.records]
    assert f"there is no {no_installed_library}" in line
    assert f"Building the {OWN} kernels in {library.CACHE}, once" in line


@needs_library
def test_library_with_another_abi_is_replaced_by_the_own_variant_with_one_line(
    empty_home: Path,
    builds: Builds,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def opened(path: Path) -> tuple[library.Library | None, str]:
        return original(path) if path != INSTALLED else (None, "built for other sources: ABI 1")

    original = library.open_library
    monkeypatch.setattr(library, "open_library", opened)
    with caplog.at_level(logging.INFO):
        assert library.load_library() is not None
    assert builds == [(library.cache_path(OWN), [OWN])]
    (line,) = [record.message for record in caplog.records]
    assert "built for other sources: ABI 1. Building the own kernels" in line


@needs_library
def test_library_from_other_sources_is_used_with_one_line(
    tmp_path: Path,
    builds: Builds,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = shutil.copy(INSTALLED, tmp_path / "other.so")
    monkeypatch.setattr(library, "source_hash", lambda: "another")
    opened, failure = library.open_library(path)
    assert (opened is None, failure, builds) == (False, "", [])
    (line,) = [record.message for record in caplog.records]
    assert f"{path} was built from other sources; used nevertheless" in line


@needs_library
def test_library_without_the_best_variant_is_used_with_one_line(
    tmp_path: Path,
    builds: Builds,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = shutil.copy(INSTALLED, tmp_path / build.LIBRARY_NAME)
    monkeypatch.setattr(library.Library, "best_variant", "fastest")
    opened, _ = library.open_library(path)
    assert (opened is None, builds) == (False, [])
    (line,) = [record.message for record in caplog.records]
    assert "was built without fastest, this processor's best instruction set" in line


@needs_library
def test_forced_isa_is_selected_until_it_is_released(builds: Builds) -> None:
    loaded = library.load_library()
    assert loaded is not None
    best = loaded.core_kernels_isa()
    library.use_isa("generic")
    assert library.load_library() is loaded
    assert loaded.core_kernels_isa() == b"generic"
    library.use_isa("")
    assert library.load_library() is loaded
    assert loaded.core_kernels_isa() == best
    assert builds == []


@needs_library
def test_isa_of_another_library_is_refused_once_one_is_in_use(
    empty_home: Path, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = library.load_library()
    monkeypatch.setattr(library.Library, "variants", ["fastest"])
    with pytest.raises(ValueError, match="got generic; this process already computes with"):
        library.use_isa("generic")
    assert library.load_library() is loaded


@needs_library
def test_forced_isa_that_the_library_lacks_is_built_alone(
    empty_home: Path,
    builds: Builds,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened, _ = library.open_library(INSTALLED)
    assert opened is not None
    monkeypatch.setattr(library.Library, "variants", ["fastest"])
    with caplog.at_level(logging.INFO):
        library.use_isa("generic")
    assert builds == [(library.cache_path("generic"), ["generic"])]
    (line,) = [record.message for record in caplog.records]
    assert f"{INSTALLED} was built without generic. Building the generic kernels" in line
    loaded = library.load_library()
    assert loaded is not None
    assert loaded is not opened
    assert loaded.core_kernels_isa() == b"generic"


@needs_library
def test_unknown_isa_is_refused_with_the_known_ones(builds: Builds) -> None:
    with pytest.raises(ValueError, match=r"got sse9; expected one of .*generic"):
        library.use_isa("sse9")
    assert builds == []


@needs_library
def test_isa_that_cannot_be_built_is_refused_and_leaves_the_best_one(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = library.load_library()
    assert loaded is not None
    monkeypatch.setattr(build, "find_compiler", lambda *_: None)
    monkeypatch.setattr(library.Library, "variants", ["fastest"])
    with pytest.raises(ValueError, match=r"got generic; .*without generic; no C.. comp"):
        library.use_isa("generic")
    assert library.load_library() is loaded


@needs_library
def test_isa_that_the_processor_lacks_is_refused_before_a_build(
    empty_home: Path, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "amx" not in build.VARIANTS:
        pytest.skip("this architecture has one variant")
    monkeypatch.setattr(library.Library, "variants", ["fastest"])
    with pytest.raises(ValueError, match="got amx; this processor has no amx"):
        library.use_isa("amx")
    assert builds == []


def test_concurrent_processes_build_the_library_once_and_say_that_they_wait(
    no_installed_library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads are enough: each opens the lock file for itself."""
    built = []
    waiting = threading.Semaphore(0)

    def slowly(target: Path, variants: list[str], objects: Path) -> None:
        del objects
        built.append(variants)
        for _ in range(2):
            assert waiting.acquire(timeout=600)
        target.write_bytes(b"")

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for another process" in record.getMessage():
                waiting.release()

    monkeypatch.setattr(library, "compile_library", slowly)
    monkeypatch.setattr(library, "probe_processor", FakeProcessor)
    handler = Waits()
    library.logger.addHandler(handler)
    try:
        others = [threading.Thread(target=library.load_library) for _ in range(3)]
        for other in others:
            other.start()
        for other in others:
            other.join()
    finally:
        library.logger.removeHandler(handler)
    assert built == [[OWN]]
    assert f"waiting for another process that builds them in {library.CACHE}" in caplog.text


def test_invalid_library_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_text("not a library")
    opened, failure = library.open_library(path)
    assert opened is None
    assert str(path) in failure


# --- the build


@pytest.fixture
def quick_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that builds a library; nothing runs, so nothing is optimized."""
    monkeypatch.setattr(build, "FLAGS", ("-O0", *build.FLAGS[1:]))

    def built(*variants: str) -> Path:
        build.compile_library(tmp_path / "lib.so", variants, tmp_path / "objects")
        return tmp_path / "lib.so"

    return built


@needs_compiler
def test_processor_probe_names_a_variant_that_the_processor_runs(tmp_path: Path) -> None:
    probe = build.probe_processor(tmp_path)
    own = probe.core_kernels_best().decode()
    assert own in build.VARIANTS
    assert own != "amx_emulated"
    assert probe.core_kernels_runs(own.encode())
    assert not probe.core_kernels_runs(b"sse9")


@pytest.mark.slow
@needs_compiler
def test_every_variant_builds_alone_and_reuses_what_is_compiled(
    quick_build: Callable[..., Path], tmp_path: Path
) -> None:
    """A library of one variant loads only where the processor runs it."""

    def compiled() -> dict[str, int]:
        return {
            path.name: path.stat().st_mtime_ns
            for path in (tmp_path / "objects").glob("*.o")
            if not path.name.startswith("dispatch")
        }

    before: dict[str, int] = {}
    for name in build.VARIANTS:
        path = quick_build(name)
        assert before.items() <= compiled().items()
        before = compiled()
        loaded, failure = library.open_library(path.rename(path.with_name(f"{name}.so")))
        if loaded is None:
            assert "has no variant for this processor" in failure
        else:
            assert set(loaded.variants) == set(build.with_bases([name]))


@needs_compiler
def test_compiler_failure_is_reported_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FLAGS", ("-std=c++1",))
    with pytest.raises(build.BuildError, match="-std=c\\+\\+1"):
        build.compile_library(tmp_path / "lib.so", ["generic"], tmp_path / "objects")
    assert list(tmp_path.iterdir()) == [tmp_path / "objects"]
    assert list((tmp_path / "objects").iterdir()) == []


def test_unknown_variant_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        build.main(["sse9"])
    assert "got sse9; expected some of generic" in capsys.readouterr().err


def test_build_without_a_compiler_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda *_: None)
    monkeypatch.setattr(build, "OBJECTS", tmp_path)
    assert build.main([]) == 0
    assert "C++ kernels not built, going on without them: no C++ compiler" in (
        capsys.readouterr().err
    )


def test_bases_of_variants_come_along_once() -> None:
    if "amx" not in build.VARIANTS:
        pytest.skip("variants with a base are for x86-64")
    assert build.with_bases(["amx", "avx512_vnni"]) == [
        "avx512", "avx512_vnni", "avx512_bf16", "amx"
    ]  # fmt: skip
    assert build.with_bases(["neon_bf16"], build.ARM) == ["generic", "neon_i8mm", "neon_bf16"]
    for variants in build.ARCHITECTURES.values():
        for variant in variants.values():
            assert variant.base or set(variant.sources) == set(build.SOURCES)
