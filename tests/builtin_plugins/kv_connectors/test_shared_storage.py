"""A folder shared by engines may be full, read-only, forbidden, gone, slow or hostile.

Each costs blocks, which are computed again: no token changes, and no request waits without end.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builtin_plugins.features.kv_tiers.tier_index import ObservedDirectory, TierIndex
from builtin_plugins.kv_connectors import disk
from builtin_plugins.kv_connectors.api import BlockKey
from builtin_plugins.kv_connectors.block_files import block_path
from builtin_plugins.kv_connectors.disk import PARTIAL_SUFFIX
from builtin_plugins.kv_connectors.shared_storage import SharedDirectory, SharedFolder
from core import LLM
from tests.builtin_plugins.kv_connectors.small_engines import (
    PARAMS,
    PROMPTS,
    Tokens,
    only_tier,
    open_llm,
    run,
    settle,
)
from tests.system.hostile_files.kv_folders import DAMAGES
from tests.timeouts import TIMEOUT_S

SHORT: dict[str, Any] = {"timeout_s": 0.5}


def open_shared(folder: Path, **options: Any) -> LLM:
    extra = {"shared_storage_path": str(folder)} | options.pop("extra", {})
    return open_llm("shared_storage", extra, **options)


def fill(folder: Path) -> None:
    """Store the blocks of all prompts, by another engine."""
    with open_shared(folder) as llm:
        run(llm)
        settle(llm)


def files(folder: Path) -> dict[Path, int]:
    """Return the block files, and when they were written."""
    found = (path for path in folder.rglob("*-*") if path.suffix != PARTIAL_SUFFIX)
    return {path: path.stat().st_ino for path in found if path.is_file()}


class Fault:
    """Lets the calls of a module's function fail, or wait, for the files of a folder."""

    def __init__(self, function: Callable[..., Any], folder: Path, error: int | None) -> None:
        self._function = function
        self._folder = str(folder)
        self._error = error
        self.released = threading.Event()
        self.reached = threading.Event()

    def __call__(self, path: Any, *arguments: Any, **options: Any) -> Any:
        where = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
        if str(where).startswith(self._folder) and not self.released.is_set():
            self.reached.set()
            if self._error is not None:
                raise OSError(self._error, os.strerror(self._error), str(where))
            assert self.released.wait(TIMEOUT_S)
        return self._function(path, *arguments, **options)


@contextmanager
def faulty(
    patch: pytest.MonkeyPatch, folder: Path, names: tuple[str, ...], error: int | None
) -> Iterator[list[Fault]]:
    """Let functions of `os` fail with an error, or wait (None), during the block."""
    faults = [Fault(getattr(os, name), folder, error) for name in names]
    for name, fault in zip(names, faults, strict=True):
        patch.setattr(os, name, fault)
    try:
        yield faults
    finally:
        for fault in faults:
            fault.released.set()


def wait_until_degraded(llm: LLM) -> None:
    """Step until the tier reports what its threads met."""
    end_s = time.monotonic() + TIMEOUT_S
    while only_tier(llm).status.info()["state"] != "degraded":
        assert time.monotonic() < end_s
        llm.core.step()
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (("pwritev",), errno.ENOSPC),
        (("pwritev",), errno.EDQUOT),
        (("mkdir", "pwritev", "replace", "unlink", "utime"), errno.EROFS),
    ],
    ids=["full", "over quota", "read-only"],
)
def test_blocks_are_read_from_a_folder_that_cannot_be_written_to(
    expected: Tokens,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    error: int,
) -> None:
    fill(tmp_path)
    with open_shared(tmp_path) as llm:
        with faulty(monkeypatch, tmp_path, names, error):
            tokens, found = run(llm)
            assert (tokens, min(found)) == (expected, 64)
            run(llm, [[7 + (i * 3 + j * j * j) % 50 for j in range(70)] for i in range(8)])
            wait_until_degraded(llm)
            assert "unlink" in names or not list(tmp_path.rglob("*.part"))
        assert run(llm)[0] == expected


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_folder_without_access_costs_no_request(
    expected: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    fill(tmp_path)
    with (
        open_shared(tmp_path) as llm,
        faulty(monkeypatch, tmp_path, ("stat", "preadv", "pwritev"), error) as (stat, *_),
    ):
        for _ in range(2):
            assert run(llm)[0] == expected
            assert llm.reset_prefix_cache()
        assert stat.reached.is_set()
        wait_until_degraded(llm)


@pytest.mark.parametrize("name", ["stat", "preadv", "pwritev"])
def test_folder_that_does_not_answer_delays_no_request_beyond_the_timeout(
    expected: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fill(tmp_path)
    if name == "pwritev":
        for path in files(tmp_path):
            path.unlink()
    with (
        open_shared(tmp_path, transfer=SHORT) as llm,
        faulty(monkeypatch, tmp_path, (name,), None) as (fault,),
    ):
        for _ in range(2):
            assert run(llm)[0] == expected
            llm.reset_prefix_cache()
        assert fault.reached.is_set()
        wait_until_degraded(llm)


def test_vanished_folder_is_made_again(expected: Tokens, tmp_path: Path) -> None:
    folder = tmp_path / "blocks"
    fill(folder)
    with open_shared(folder) as llm:
        assert min(run(llm)[1]) == 64
        folder.rename(tmp_path / "gone")
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        settle(llm)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert files(folder)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(name, marks=() if name in ("truncated", "FIFO") else pytest.mark.slow)
        for name in DAMAGES
    ],
)
@pytest.mark.parametrize("is_found", [False, True], ids=["before", "after the lookup"])
def test_hostile_files_change_no_token(
    expected: Tokens, tmp_path: Path, damage: str, is_found: bool
) -> None:
    fill(tmp_path)
    with open_shared(tmp_path, num_gpu_blocks_override=400) as llm:
        if is_found:
            assert run(llm)[0] == expected
            settle(llm)
            assert llm.reset_prefix_cache()
        number = 2 if damage == "thousands of odd names" else None
        for path in sorted(files(tmp_path))[:number]:
            DAMAGES[damage](path)
        for _ in range(2):
            assert run(llm)[0] == expected
            llm.reset_prefix_cache()


def test_other_settings_neither_find_nor_delete_blocks(expected: Tokens, tmp_path: Path) -> None:
    fill(tmp_path)
    before = files(tmp_path)
    assert before
    with open_shared(tmp_path, dtype="bfloat16", extra={"max_bytes": 64 << 10}) as other:
        assert max(run(other)[1]) == 0
        settle(other)
        assert only_tier(other).status.info()["state"] == "ready"
    after = files(tmp_path)
    assert before.items() <= after.items()
    with open_shared(tmp_path) as llm:
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)


def test_other_tenants_salt_finds_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_shared(tmp_path) as llm:
        prompts: list[Any] = [
            {"prompt_token_ids": prompt, "cache_salt": "another tenant"} for prompt in PROMPTS
        ]
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
        assert [output.num_cached_tokens or 0 for output in outputs] == [0] * len(PROMPTS)


def test_full_engine_deletes_no_blocks_of_others(expected: Tokens, tmp_path: Path) -> None:
    fill(tmp_path)
    before = files(tmp_path)
    block_bytes = next(iter(before)).stat().st_size
    with open_shared(tmp_path, extra={"max_bytes": 12 * block_bytes}) as llm:
        assert min(run(llm)[1]) == 64
        for start in range(3):
            run(llm, [[2 + (i * 7 + start + j * j * j) % 60 for j in range(70)] for i in range(4)])
            settle(llm)
        index = only_tier(llm)._index
        assert index.num_evicted > 0
        assert index.directory.num_bytes <= index.directory.capacity_bytes
        found = {Path(block_path(key)).name for key in index.directory._found}
    assert len(found) == 64
    assert {path for path in before if path.name in found} <= files(tmp_path).keys()


def test_block_that_is_written_and_found_at_once_is_stored_once() -> None:
    """A write ends well, although a lookup and a failed read have met the block meanwhile."""
    directory = SharedDirectory(1 << 10, [8], "lru")
    key = BlockKey(0, bytes(32))
    assert directory.admit(key, ()) == []
    directory.add_found(key)
    assert not directory.holds(key)
    directory.mark_stored(key)
    assert (directory.holds(key), directory.num_bytes) == (True, 8)
    directory.discard(key)
    directory.add_found(key)
    assert directory.admit(key, ()) is None
    directory.discard(key)
    assert (directory.holds(key), directory.num_bytes) == (False, 0)


def test_block_file_of_another_engine_is_not_written_again(tmp_path: Path) -> None:
    key = BlockKey(0, secrets.token_bytes(32))
    block = [np.zeros(4, np.uint8)]
    other = SharedFolder(tmp_path, [4])
    own = SharedFolder(tmp_path, [4])
    other.write(key, block, bytes(16))
    before = files(tmp_path)
    own.write(key, block, bytes(16))
    assert files(tmp_path) == before
    (path,) = before
    path.write_bytes(path.read_bytes()[:-1])
    own.write(key, block, bytes(16))
    assert own.read(key, [np.ones(4, np.uint8)]) == bytes(16), "a file that was cut is replaced"


def test_found_blocks_take_no_space_and_are_reported() -> None:
    events: list[tuple[str, BlockKey, bool]] = []
    inner = SharedDirectory(1 << 10, [8], "lru")
    directory = ObservedDirectory(inner, "shared", [lambda *event: events.append(event)])
    index = TierIndex(directory, 2)
    key = BlockKey(0, bytes(32))
    index.add_found(0, [key])
    assert not directory.holds(key), "one rank of two"
    index.add_found(1, [key])
    assert (directory.holds(key), directory.num_bytes) == (True, 0)
    index.discard(key)
    assert not directory.holds(key)
    assert events == [("shared", key, True), ("shared", key, False)]


def test_engines_with_equal_process_ids_write_different_incomplete_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share a folder have the same ids."""
    names: list[str] = []
    replace = os.replace

    def note(source: Path, target: Path) -> None:
        names.append(source.name)
        replace(source, target)

    monkeypatch.setattr(disk.os, "replace", note)
    key = BlockKey(0, secrets.token_bytes(32))
    for _ in range(2):
        disk.Folder(tmp_path, [4]).write(key, [np.zeros(4, np.uint8)], bytes(16))
    assert len({*names}) == 2
