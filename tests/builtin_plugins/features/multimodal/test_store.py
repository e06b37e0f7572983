"""Tensors stay while a request holds them, and the least recently used of the others leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builtin_plugins.features.multimodal import store as store_module
from builtin_plugins.features.multimodal.store import TensorStore, make_folder, remove_folder

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


def test_items_of_refused_requests_are_released_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, 9)
    store.write(KEYS[0], tensors(0), {})
    store.hold("refused", KEYS[:1])
    store.hold("runs", KEYS[:1])
    store.adopt("runs")
    store.sweep()
    assert sorted(store.holders()) == ["refused", "runs"]
    monkeypatch.setattr(store_module, "MAX_PENDING_S", -1.0)
    store.sweep()
    assert list(store.holders()) == ["runs"]


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
