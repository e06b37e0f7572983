"""Weight shards of a rank: rows and columns, reordered, packed, in blocks, transposed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.errors import ModelError
from core.model_spec.parallel import ParallelGroup
from core.model_spec.weight_shard import WeightShard
from core.models.layers.linear import Linear, Slice
from core.models.layers.weights import WeightMap
from core.testing.one_sequence import plain_context


def part_of(
    rank: int, size: int, split: str, *slices: Slice, in_features: int = 8, **more: Any
) -> WeightShard:
    context = plain_context(ParallelGroup(size, rank))
    layer = Linear(context, WeightMap(), "a", in_features, slices, split=split, **more)
    (part,) = layer.parts.values()
    return part


def test_shard_maps_rows_of_fused_tensor_to_slices() -> None:
    part = part_of(1, 2, "rows", Slice("q", 4), Slice("k", 2, parts=1))
    assert part.pieces == (
        (slice(2, 6), slice(0, 4)),
    )  # q's second half and the copy of k lie together
    part = part_of(0, 2, "rows", Slice("q", 4), Slice("k", 2, parts=1))
    assert part.pieces == ((slice(0, 2), slice(0, 2)), (slice(4, 6), slice(2, 4)))
    assert part.rows(torch.arange(6)).tolist() == [0, 1, 4, 5]
    assert (part.target, part.out_features, part.in_features) == (slice(0, 4), 6, 8)


def test_shard_yields_blocks_of_rows() -> None:
    part = part_of(0, 2, "rows", Slice("q", 6), Slice("k", 2, parts=1))
    assert [block.pieces for block in part.blocks(2)] == [
        ((slice(0, 2), slice(0, 2)),),
        ((slice(2, 3), slice(2, 3)),),
        ((slice(6, 8), slice(3, 5)),),
    ]
    rows = torch.arange(8)
    assert torch.equal(torch.cat([block.rows(rows) for block in part.blocks(2)]), part.rows(rows))


def test_shard_follows_checkpoint_row_order() -> None:
    part = part_of(0, 1, "rows", Slice("up", 2), Slice("gate", 2), order=[1, 0])
    assert part.rows(torch.arange(4)).tolist() == [2, 3, 0, 1]
    assert part_of(0, 1, "", Slice("up", 4), order=[0, 1]).pieces == ((slice(0, 4), slice(0, 4)),)


def test_shard_slices_packed_words_and_block_scales() -> None:
    part = part_of(1, 2, "rows", Slice("q", 16), in_features=12)
    zeros = torch.arange(4).view(2, 2)  # [groups, out / 8] as GPTQ packs them
    assert part.rows(zeros, 1, per=8).tolist() == [[1], [3]]
    part = part_of(1, 2, "columns", Slice("o", 6), in_features=12)
    assert part.columns(torch.arange(12), 0).tolist() == list(
        range(6, 12)
    )  # g_idx, one number for each column
    assert part.columns(torch.arange(4).view(1, 4), per=3).tolist() == [[2, 3]]
    assert part.rows(torch.arange(2), per=4).tolist() == [
        0,
        1,
    ]  # the last block is filled by two rows
    assert part.rows(torch.tensor(3.0)).item() == 3.0


def test_shard_that_ends_within_a_block_is_rejected() -> None:
    part = part_of(0, 2, "rows", Slice("q", 12))
    with pytest.raises(
        ModelError, match="elements of 4 numbers, and this rank's part, 0 to 6 of 12"
    ):
        part.rows(torch.arange(3), per=4)


def test_shard_slices_transposed_tensor() -> None:
    part = part_of(1, 2, "columns", Slice("o", 3), in_features=4, transposed=True)
    stored = torch.arange(12).view(4, 3)
    assert part.shape == (4, 3)
    ((rows, own),) = part.plain(stored)
    assert rows == slice(0, 3)
    assert own.tolist() == stored[2:].T.tolist()


def test_method_reports_tensor_shapes() -> None:
    class Packed:
        suffixes = ("qweight",)
        optional_suffixes = ("g_idx",)

        def shape(self, suffix: str, part: WeightShard) -> tuple[int, ...] | None:
            return (
                (part.in_features // 8, part.out_features)
                if suffix == "qweight"
                else (part.in_features,)
            )

        def create(
            self, layer: torch.nn.Module, in_features: int, out_features: int, dtype: torch.dtype
        ) -> None:
            qweight: Any = torch.zeros(in_features // 8, out_features, dtype=torch.int32)
            layer.qweight = qweight
            self.seen: list[str] = []

        def load(
            self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, part: WeightShard
        ) -> None:
            self.seen.append(suffix)
            if suffix == "qweight":
                layer.qweight[:, part.target] = part.rows(tensor, 1)  # type: ignore[index,operator]

        def finish(self, layer: torch.nn.Module) -> None:
            """Nothing to repack."""

    class Method:
        name = "packed"

        def linear(self, prefix: str) -> Packed:
            return Packed()

    def layer_and_weights() -> tuple[Linear, WeightMap]:

        weights = WeightMap()
        context = replace(plain_context(), quant=Method())  # type: ignore[arg-type]
        return Linear(
            context, weights, "a", 16, [Slice("q", 4, "a.q"), Slice("k", 2, "a.k")]
        ), weights

    words = {"a.q.qweight": torch.full((2, 4), 5), "a.k.qweight": torch.full((2, 2), 7)}
    layer, weights = layer_and_weights()
    assert weights.shapes() == {"a.q.qweight": (2, 4), "a.k.qweight": (2, 2)}
    weights.load({**words, "a.q.g_idx": torch.zeros(16)}.items())
    assert layer.qweight.tolist() == [[5] * 4 + [7] * 2] * 2  # type: ignore[operator]
    assert layer.method.seen == ["qweight", "qweight", "g_idx"]
    _, weights = layer_and_weights()
    with pytest.raises(ModelError, match=r"a\.q\.qweight: expected \[2, 4\], found \[4, 2\]"):
        weights.load({**words, "a.q.qweight": torch.zeros(4, 2)}.items())
