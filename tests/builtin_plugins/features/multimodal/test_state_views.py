"""The states that a token reads are those of transformers' mask, whatever the images and texts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.mllama import processing_mllama

from builtin_plugins.features.multimodal.messages import ItemRun, RequestItem
from builtin_plugins.features.multimodal.state_views import groups_of, offsets_of, views_of

NUM_STATES = 20
PER_TILE = 5
BLOCK = 16


def items_at(positions: list[int]) -> list[RequestItem]:
    return [RequestItem("image", b"", NUM_STATES, [ItemRun(at, 1, 0)]) for at in positions]


def stored(items: list[RequestItem], num_visible: list[int]) -> list[tuple[int, int] | None]:
    """Return (item, state) of each encoder position, as the worker half writes them."""
    order = [(i, s) for i, n in enumerate(num_visible) for s in range(n)]
    order += [(i, s) for i, n in enumerate(num_visible) for s in range(n, NUM_STATES)]
    offsets = offsets_of(items, BLOCK)
    found: list[tuple[int, int] | None] = [None] * offsets[-1]
    found[: len(order)] = order
    for group, offset in zip(groups_of(items)[1:], offsets[1:], strict=False):
        own = [(i, s) for i in group for s in range(num_visible[i])]
        found[offset : offset + len(own)] = own
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=12).filter(
        lambda tokens: any(is_image for is_image, _ in tokens)
    )
)
def test_views_are_the_mask_of_transformers(tokens: list[tuple[bool, int]]) -> None:
    ids = [int(is_image) for is_image, _ in tokens]
    tiles = [count for is_image, count in tokens if is_image]
    items = items_at([at for at, token in enumerate(ids) if token])
    num_visible = [count * PER_TILE for count in tiles]
    mask = processing_mllama.convert_sparse_cross_attention_mask_to_dense(
        [processing_mllama.get_cross_attention_token_mask(ids, 1)], [tiles], 4, len(ids)
    )[0]
    views = views_of(items, num_visible, BLOCK)
    where = stored(items, num_visible)
    assert [view.first_token for view in views] == sorted(view.first_token for view in views)
    for token in range(len(ids)):
        view = [each for each in views if each.first_token <= token][-1]
        assert view.offset % BLOCK == 0
        read = where[view.offset : view.offset + view.length]
        expected = {
            (item, state)
            for item in range(len(tiles))
            for state in range(NUM_STATES)
            if mask[token].any() == 0 or mask[token, item, state // PER_TILE]
        }
        assert len(read) == len(expected)
        assert set(read) == expected
