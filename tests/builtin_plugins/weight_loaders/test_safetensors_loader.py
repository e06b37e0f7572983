"""Tensors equal those of the safetensors library, memory-mapped instead of copied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from builtin_plugins.weight_loaders.safetensors.header import ITEM_BITS
from builtin_plugins.weight_loaders.safetensors.loader import _DTYPES, SafetensorsLoader
from core.config import EngineConfig
from core.contracts.models import ModelSource
from core.errors import ModelError


def loader(folder: Path | None) -> SafetensorsLoader:
    return SafetensorsLoader(
        ModelSource("m", "A", None, path=None if folder is None else str(folder)), EngineConfig()
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_every_dtype_and_shape_is_loaded(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensors = {
        "a": torch.ones(shape).to(dtype),
        "odd": torch.ones(3, dtype=torch.uint8),
        "b": torch.ones(5).to(dtype),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = dict(loader(tmp_path).tensors())
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_tensors_that_are_not_selected_stay_on_meta(tmp_path: Path) -> None:
    save_file({"own": torch.ones(4), "other": torch.full((2, 3), 2.0)}, tmp_path / "a.safetensors")
    save_file({"foreign": torch.ones(2)}, tmp_path / "b.safetensors")
    reader = loader(tmp_path)
    reader.select(lambda name: name == "own")
    found = dict(reader.tensors())
    assert torch.equal(found.pop("own"), torch.ones(4))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "other": (2, 3),
        "foreign": (2,),
    }
    assert all(tensor.is_meta for tensor in found.values())


def test_tensors_are_mapped_copy_on_write(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4)}, path)
    before = path.read_bytes()
    (_, tensor), *_ = loader(tmp_path).tensors()
    tensor.fill_(1.0)
    assert path.read_bytes() == before


@pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(),
    reason="counts the pages of a mapping as Linux shows them",
)
def test_copied_tensor_releases_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"copied": torch.ones(1 << 20), "mapped": torch.full((1 << 20,), 2.0)}, path)
    stored = []
    for name, tensor in loader(tmp_path).tensors():
        if name == "mapped":
            stored.append(tensor)
        else:
            assert tensor.clone().sum() == 1 << 20
    del tensor
    assert 4 << 20 <= resident_bytes(path) < 5 << 20
    assert stored[0].sum() == 2 << 20
    stored.clear()
    assert resident_bytes(path) == 0


def resident_bytes(path: Path) -> int:
    """Return how much of a file this process holds in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    sizes = [
        next(rest for rest in lines if rest.startswith("Rss:"))
        for line in lines
        if line.endswith(str(path))
    ]
    return sum(int(size.split()[1]) << 10 for size in sizes)


def test_unaligned_tensors_are_copied(tmp_path: Path) -> None:
    header: dict[str, Any] = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}
    header["odd"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    text = json.dumps(header).encode().ljust(96)
    data = torch.tensor([1.5, -2.5]).numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + b"\0" + data
    )
    assert dict(loader(tmp_path).tensors())["x"].tolist() == [1.5, -2.5]


def test_every_dtype_of_the_header_has_a_torch_dtype() -> None:
    assert set(ITEM_BITS) == set(_DTYPES)
    assert all(_DTYPES[name].itemsize * 8 == bits for name, bits in ITEM_BITS.items())


def test_index_outside_its_folder_is_rejected(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../other.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside its folder"):
        loader(tmp_path)


def test_source_without_folder_is_rejected() -> None:
    with pytest.raises(ModelError, match="no folder to read weights from"):
        loader(None)


def test_total_bytes_is_sum_of_file_sizes(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert loader(tmp_path).total_bytes() == (tmp_path / "model.safetensors").stat().st_size


def test_large_tensors_come_first_then_by_offset(
    tmp_path: Path,
) -> None:
    names = ["a", "b", "c", "d"]
    sizes = {"d": 50, "b": 400}
    tensors = {name: torch.zeros(sizes.get(name, 10), dtype=torch.uint8) for name in names}
    save_file(tensors, tmp_path / "model.safetensors")
    assert [name for name, _ in loader(tmp_path).tensors()] == ["b", "d", "a", "c"]
    assert [name for name, _ in loader(tmp_path).headers()] == names
