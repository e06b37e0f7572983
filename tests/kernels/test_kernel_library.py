"""The library is found installed, else built once into the user's cache, else missed with one
warning.
"""

from __future__ import annotations

import logging
import shutil
import threading

import pytest
from core_kernels import build, library

INSTALLED = build.FOLDER / build.LIBRARY_NAME


@pytest.fixture
def no_installed_library(tmp_path, monkeypatch):
    """Hide the library next to the package and give the user an empty home."""
    monkeypatch.setattr(library, "LIBRARY_NAME", "absent.so")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_missing_compiler_logs_one_warning(no_installed_library, monkeypatch, caplog):
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert library.load_library() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no C++ compiler found (looked for c++, g++, clang++)" in caplog.text
    assert "Install g++" in caplog.text


@pytest.mark.skipif(not INSTALLED.exists(), reason="no C++ library on this machine")
def test_library_is_built_once_into_the_cache(no_installed_library, monkeypatch):
    built = []

    def copied(target):
        shutil.copy(INSTALLED, target)
        built.append(target)

    monkeypatch.setattr(library, "compile_library", copied)
    assert library.load_library() is not None
    assert library.load_library() is not None
    assert built == [library.cache_path()]
    assert library.cache_path().is_relative_to(no_installed_library)


def test_concurrent_processes_build_the_library_once(no_installed_library, monkeypatch):
    built = []

    def slowly(target):
        built.append(target)
        barrier.wait()
        target.write_bytes(b"")

    barrier = threading.Barrier(2)
    monkeypatch.setattr(library, "compile_library", slowly)
    others = [threading.Thread(target=library.load_library) for _ in range(3)]
    for other in others:
        other.start()
    barrier.wait()
    for other in others:
        other.join()
    assert len(built) == 1


@pytest.mark.slow
@pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")
def test_compiled_library_loads(no_installed_library, monkeypatch):
    monkeypatch.setattr(
        build, "FLAGS", ("-O0", *build.FLAGS[1:])
    )  # nothing runs; optimising takes a minute
    assert library.load_library() is not None


@pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")
def test_compiler_failure_is_reported_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "FLAGS", ("-std=c++1",))
    failure = build.compile_library(tmp_path / "lib.so")
    assert failure is not None
    assert "-std=c++1" in failure
    assert list(tmp_path.iterdir()) == []


def test_invalid_library_file_is_rejected(tmp_path):
    path = tmp_path / "broken.so"
    path.write_text("not a library")
    opened, failure = library.open_library(path)
    assert opened is None
    assert str(path) in failure
