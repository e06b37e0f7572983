"""Tensors stay while a request holds them, and the least recently used of the others leave."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from builtin_plugins.features.multimodal import store as store_module
from builtin_plugins.features.multimodal.store import (
    StoreFull,
    TensorStore,
    make_folder,
    remove_folder,
)

KEYS = [bytes([number]) * 32 for number in range(4)]
SIZE = 1000


def tensors(number: int) -> dict[str, torch.Tensor]:
    return {"pixels": torch.full((SIZE,), float(number)), "grid": torch.tensor([[1, 2, number]])}


def opened(folder: Path, items: float) -> TensorStore:
    store = TensorStore(str(folder), int(items * 4 * SIZE))
    store.open()
    return store


def test_held_items_outlive_their_eviction(tmp_path: Path) -> None:
    store = opened(tmp_path, 2.5)
    for number, key in enumerate(KEYS):
        store.write(key, tensors(number), {"text": str(number)})
        store.hold("request", [key])
    assert store.facts(KEYS[0]) is None
    assert store.facts(KEYS[3]) == {"text": "3"}
    reader = TensorStore(str(tmp_path))
    reader.adopt("request")
    reader.adopt("request")
    for number, key in enumerate(KEYS):
        found = reader.read("request", key)
        assert {name: tensor.tolist() for name, tensor in found.items()} == {
            name: tensor.tolist() for name, tensor in tensors(number).items()
        }
    reader.release("request")
    with pytest.raises(OSError, match="No such file"):
        reader.read("request", KEYS[3])
    assert list(reader.holders()) == []


@pytest.mark.parametrize("moves", ["adopt", "release"])
@pytest.mark.parametrize("folder", ["pending", "held"])
def test_holders_that_leave_while_they_are_listed_fail_no_other_request(
    folder: str, moves: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, 2.5)
    store.write(KEYS[0], tensors(0), {})
    store.hold("leaves", [KEYS[0]])
    engine = TensorStore(str(tmp_path))
    if folder == "held":
        engine.adopt("leaves")

    def leave_before(listing: Any) -> Any:
        def leave(path: Any) -> Any:
            if not isinstance(path, int) and Path(path) == tmp_path / folder / "leaves":
                getattr(engine, moves if folder == "pending" else "release")("leaves")
            return listing(path)

        return leave

    monkeypatch.setattr(os, "listdir", leave_before(os.listdir))
    monkeypatch.setattr(os, "scandir", leave_before(os.scandir))
    store.sweep()
    store.hold("stays", [KEYS[0]])
    assert "stays" in set(store.holders())


def test_the_least_recently_used_item_leaves_first(tmp_path: Path) -> None:
    store = opened(tmp_path, 2.5)
    store.write(KEYS[0], tensors(0), {})
    store.write(KEYS[1], tensors(1), {})
    store.facts(KEYS[0])
    store.write(KEYS[2], tensors(2), {})
    assert store.facts(KEYS[1]) is None
    assert store.facts(KEYS[0]) is not None


def test_an_item_larger_than_the_cache_can_be_held(tmp_path: Path) -> None:
    store = opened(tmp_path, 0)
    store.write(KEYS[0], tensors(0), {})
    store.hold("one", [KEYS[0], KEYS[0]])
    store.write(KEYS[1], tensors(1), {})
    store.hold("one", [KEYS[1]])
    store.adopt("one")
    assert store.read("one", KEYS[0])["grid"].tolist() == [[1, 2, 0]]


def test_a_new_writer_goes_on_with_the_items_of_the_last(tmp_path: Path) -> None:
    opened(tmp_path, 9).write(KEYS[0], tensors(0), {"text": "a"})
    assert opened(tmp_path, 9).facts(KEYS[0]) == {"text": "a"}


def test_folders_of_ended_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(store_module, "MIN_FREE_BYTES", 0)
    left = tmp_path / f"{store_module.PREFIX}{2**22 + 1}-old"
    other = tmp_path / f"{store_module.PREFIX}1-alive"
    left.mkdir()
    other.mkdir()
    made = Path(make_folder())
    assert made.parent == tmp_path
    assert not left.exists()
    assert other.exists()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Monotonic and wall time of the store, in seconds."""
    found = SimpleNamespace(monotonic_s=1000.0, wall_s=1e9)
    monkeypatch.setattr("time.monotonic", lambda: found.monotonic_s)
    monkeypatch.setattr("time.time", lambda: found.wall_s)
    return found


def test_items_of_refused_requests_are_released_in_time(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    store = opened(tmp_path, 9)
    store.write(KEYS[0], tensors(0), {})
    store.hold("refused", KEYS[:1])
    store.hold("runs", KEYS[:1])
    store.adopt("runs")
    store.sweep()
    assert sorted(store.holders()) == ["refused", "runs"]
    clock.monotonic_s += store_module.MAX_PENDING_S + 1
    store.sweep()
    assert list(store.holders()) == ["runs"]


@pytest.mark.parametrize("jump_s", [-36_000.0, 36_000.0])
def test_jumps_of_the_wall_clock_release_and_retain_nothing(
    tmp_path: Path, clock: SimpleNamespace, jump_s: float
) -> None:
    store = opened(tmp_path, 9)
    store.hold("pending", [])
    past = time.time_ns() - int(jump_s * 10**9)
    os.utime(tmp_path / store_module.PENDING / "pending", ns=(past, past))
    clock.wall_s += jump_s
    store.sweep()
    assert list(store.holders()) == ["pending"]
    new = opened(tmp_path, 9)  # the process was killed
    new.sweep()
    clock.monotonic_s += store_module.MAX_PENDING_S - 1
    new.sweep()
    assert list(new.holders()) == ["pending"]
    clock.monotonic_s += 2
    new.sweep()
    assert list(new.holders()) == []


def test_items_of_an_engine_that_died_stay_for_the_next_one(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, 9)
    store.write(KEYS[0], tensors(0), {})
    for name in ("continues", "given up"):
        store.hold(name, KEYS[:1])
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: 2**22 + 1)  # no process has this id
            store.adopt(name)
    store.sweep()
    clock.monotonic_s += store_module.MAX_PENDING_S - 1
    store.sweep()
    store.adopt("continues")
    clock.monotonic_s += 2
    store.sweep()
    assert list(store.holders()) == ["continues"]
    assert store.read("continues", KEYS[0])["grid"].tolist() == [[1, 2, 0]]


def test_pending_items_are_bounded_in_bytes(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, 1)
    monkeypatch.setattr(store_module, "MAX_PENDING_BYTES", 10 * SIZE)
    for number in (0, 1):  # with the others' items they have 8 * SIZE bytes and headers
        store.write(KEYS[number], tensors(number), {})
        store.hold(f"pending {number}", [KEYS[number]])
        store.hold(f"same {number}", [KEYS[number]])
        clock.monotonic_s += 1
    store.hold("runs", KEYS[1:2])
    store.adopt("runs")
    store.write(KEYS[2], tensors(2), {})
    with pytest.raises(StoreFull, match="have not started"):
        store.hold("new", [KEYS[2]])
    assert sorted(store.holders()) == ["pending 0", "pending 1", "runs", "same 0", "same 1"]
    clock.monotonic_s += store_module.MIN_PENDING_S - 1
    store.hold("new", [KEYS[2]])
    assert sorted(store.holders()) == ["new", "pending 1", "runs", "same 1"]


def test_a_released_item_cannot_be_adopted(tmp_path: Path) -> None:
    store = opened(tmp_path, 9)
    store.hold("released", [])
    store.release("released")
    with pytest.raises(OSError, match="No such file"):
        store.adopt("released")


def test_full_shared_memory_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensors: Any, path: Path, facts: Any) -> None:
        path.write_bytes(b"a part")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    store = opened(tmp_path, 9)
    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(StoreFull, match="is full"):
        store.write(KEYS[0], tensors(0), {})
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_held_items_outlive_their_writer_while_their_engine_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    store = opened(folder, 9)
    store.write(KEYS[0], tensors(0), {})
    store.hold("runs", KEYS[:1])
    monkeypatch.setattr("os.getpid", lambda: 1)  # another process that lives
    store.adopt("runs")
    monkeypatch.undo()
    remove_folder(folder)
    assert store.read("runs", KEYS[0])["grid"].tolist() == [[1, 2, 0]]
    assert not (folder / store_module.ITEMS).exists()
    (folder / f"{store_module.ENGINE}1").rename(folder / f"{store_module.ENGINE}{2**22 + 1}")
    remove_folder(folder)
    assert not folder.exists()
