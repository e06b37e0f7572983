"""Tensors of clients: every form is the same tensor, and what could run code is refused."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from builtin_plugins.features.multimodal.client_tensors import ClientTensor, read_tensors
from builtin_plugins.features.multimodal.item_embeddings import embedded_items
from core.api import InvalidRequest

LIMIT = 1 << 20
VALUES = torch.arange(12, dtype=torch.float32).reshape(3, 4)
DATA = VALUES.numpy().tobytes()


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def raw(**changes: Any) -> dict[str, Any]:
    return {"data": text(DATA), "dtype": "float32", "shape": [3, 4], **changes}


def torch_saved() -> bytes:
    file = io.BytesIO()
    torch.save(VALUES, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        VALUES,
        VALUES.t().contiguous().t(),
        VALUES.numpy(),
        save({"anything": VALUES}),
        text(save({"anything": VALUES})),
        raw(),
        {"x": VALUES},
        {"x": text(save({"y": VALUES}))},
        {"x": raw()},
    ],
)
def test_every_form_is_the_same_tensor(value: Any) -> None:
    assert read_tensors(value, "x", "f", LIMIT) == {"x": ClientTensor("float32", (3, 4), DATA)}


def test_bfloat16_keeps_its_bits() -> None:
    values = VALUES.bfloat16()
    found = read_tensors(values, "x", "f", LIMIT)
    assert found == read_tensors(text(save({"x": values})), "x", "f", LIMIT)
    assert len(found["x"].data) == 24


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (text(torch_saved()), "^f: got a file of torch.save, which may hold code"),
        (text(pickle.dumps([1])), "^f: got a file of torch.save"),
        (text(b"nonsense"), "^f: got bytes that are no safetensors file"),
        (text((2**62).to_bytes(8, "little") + b"{}"), "^f: got bytes that are no safetensors"),
        ("not base64!", "^f: got a text that is not base64"),
        (raw(dtype="object"), "^f.dtype: got 'object'; expected one of float32"),
        (raw(shape=[3, 5]), "^f.data: got 48 bytes for float32 of shape"),
        (raw(shape=[-3, -4]), "^f.shape: got"),
        (raw(shape=[2**40, 0]), "^f.shape: got"),
        (raw(shape="34"), "^f.shape: got '34'"),
        (raw(data=7), "^f.data: got int"),
        (raw(data=text(bytes(2 * LIMIT))), "^f.data: got about"),
        ({"x": None}, "^f.x: got NoneType"),
        ({"x": {"y": raw()}}, "^f.x.dtype: got None"),
        (VALUES.to(torch.float64), "^f: got float64"),
        (VALUES.to_sparse(), "^f: got a tensor of torch.sparse_coo"),
        (np.array(["a"]), "^f: got "),
        (torch.zeros(0, 4), "^f: got float32 of shape"),
        (7, "^f: got int"),
    ],
)
def test_anything_else_is_refused_by_field(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_tensors(value, "x", "f", LIMIT)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_fail(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_tensors(data, "x", "f", LIMIT)


def items(value: Any, uuid: str | None = None) -> list[Any]:
    return embedded_items("image", value, "f", uuid, 4, LIMIT)


def test_items_of_one_tensor_are_split_by_axis_or_by_grid() -> None:
    grids = torch.tensor([[1, 2, 4], [1, 2, 2]])  # 12 patches for 3 embeddings
    assert len(items(VALUES)) == 1
    assert items(torch.stack([VALUES, VALUES + 1])) == [*items(VALUES), *items(VALUES + 1)]
    first, second = items({"image_embeds": VALUES, "image_grid_thw": grids})
    assert first == items({"image_embeds": VALUES[:2], "image_grid_thw": grids[:1]})[0]
    assert second == items({"image_embeds": VALUES[2:], "image_grid_thw": grids[1]})[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (VALUES[:, :3], r"^f: got image_embeds of float32 and shape \[3, 3\]; .*\[tokens, 4\]"),
        (VALUES.long(), "^f: got image_embeds of int64"),
        ({"pixels": VALUES}, "^f: got tensors 'pixels'"),
        (
            {"image_embeds": VALUES, "image_grid_thw": torch.tensor([[1, 2, 4], [1, 2, 3]])},
            "^f.image_grid_thw: got 14 patches for 3 embeddings",
        ),
        (
            {"image_embeds": VALUES, "image_grid_thw": torch.tensor([[1, 2, 4], [-1, 2, -2]])},
            "^f.image_grid_thw: got",
        ),
        (
            {"image_embeds": VALUES, "image_grid_thw": VALUES},
            "^f.image_grid_thw: got float32 of shape",
        ),
    ],
)
def test_embeddings_of_another_shape_are_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        items(value)
