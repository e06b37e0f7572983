"""The store of processed tensors: what is held, adopted, released, and removed by age or size."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from builtin_plugins.features.multimodal import store as module
from builtin_plugins.features.multimodal.store import RESERVED_S, TensorStore

ITEMS = [bytes([n]) * 32 for n in range(4)]


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    """Return a store with a cache of one item."""
    store = TensorStore(str(tmp_path), cache_bytes=1)
    store.open()
    return store


def write(store: TensorStore, content_hash: bytes) -> None:
    store.write(content_hash, {"pixels": torch.ones(100)}, {"num_tokens": "4"})


def files(folder: Path) -> int:
    """Return the number of distinct files: links to one file count once."""
    return len({path.stat().st_ino for path in folder.rglob("*") if path.is_file()})


def test_adopted_items_are_read_until_they_are_released(store: TensorStore, tmp_path: Path) -> None:
    write(store, ITEMS[0])
    store.reserve("a", [ITEMS[0]])
    store.adopt("a")
    write(store, ITEMS[1])  # takes its place in the cache
    assert store.facts(ITEMS[0]) is None
    assert torch.equal(TensorStore(str(tmp_path)).read("a", ITEMS[0])["pixels"], torch.ones(100))
    store.adopt("a")  # another sequence of the request
    assert files(tmp_path) == 2
    store.release("a")
    assert files(tmp_path) == 1
    assert list(store.holders()) == []


def test_released_reservation_frees_its_items(store: TensorStore, tmp_path: Path) -> None:
    write(store, ITEMS[0])
    store.reserve("a", [ITEMS[0]])
    write(store, ITEMS[1])
    assert files(tmp_path) == 2
    store.release("a")
    assert files(tmp_path) == 1


def test_old_reservations_are_removed_and_adopted_items_stay(
    store: TensorStore, tmp_path: Path
) -> None:
    for holder in ("old", "adopted", "new"):
        write(store, ITEMS[0])
        store.reserve(holder, [ITEMS[0]])
    store.adopt("adopted")
    before_s = time.time() - RESERVED_S - 1
    for path in (tmp_path / "reserved" / "old", tmp_path / "held" / "adopted"):
        os.utime(path, (before_s, before_s))
    store.remove_old_reservations()
    assert sorted(store.holders()) == ["adopted", "new"]


def test_oldest_reservations_are_removed_over_the_limit(
    store: TensorStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    for index, content_hash in enumerate(ITEMS):
        write(store, content_hash)
        store.reserve(f"r{index}", [content_hash])
        os.utime(tmp_path / "reserved" / f"r{index}", (now_s - 9 + index, now_s - 9 + index))
    size = next((tmp_path / "reserved" / "r0").iterdir()).stat().st_size
    monkeypatch.setattr(module, "RESERVED_BYTES", 2 * size)
    store.remove_old_reservations()
    assert sorted(store.holders()) == ["r2", "r3"]
