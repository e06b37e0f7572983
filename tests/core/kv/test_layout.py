"""The division of KV memory into groups and pools."""

import pytest

from core.errors import ConfigError
from core.kv import plan_layout
from core.model_spec.kv import ChunkedLocal, FullAttention, LayerKV, RecurrentState, SlidingWindow

FULL = FullAttention(2, 64, "bfloat16")
WINDOW = SlidingWindow(2, 64, "bfloat16", window=32)
STATE = RecurrentState((((3, 100), "bfloat16"), ((16, 64), "float32")))
LIMITS = {"block_size": 16, "max_model_len": 256, "max_num_seqs": 8}


def layers(*specs):
    return [LayerKV(f"layer{i}", spec) for i, spec in enumerate(specs)]


def test_layers_of_one_spec_form_one_group():
    layout = plan_layout(layers(FULL, FULL, FULL), memory_bytes=2**20, **LIMITS)
    assert [group.layers for group in layout.groups] == [[0, 1, 2]]
    assert layout.pools[0].slot_bytes == 16 * FULL.token_bytes
    assert layout.pools[0].num_slots == 3


def test_hybrid_layers_form_equal_groups_in_one_pool():
    layout = plan_layout(layers(*[FULL, WINDOW, WINDOW] * 10), memory_bytes=2**30, **LIMITS)
    assert sorted(len(group.layers) for group in layout.groups) == [10, 10, 10]
    assert {group.pool for group in layout.groups} == {0}
    assert sorted(i for group in layout.groups for i in group.layers) == list(range(30))


def test_nearly_equal_layer_counts_are_padded():
    layout = plan_layout(layers(*[FULL] * 5, *[WINDOW] * 6), memory_bytes=2**30, **LIMITS)
    assert sorted(len(group.layers) for group in layout.groups) == [5, 6]
    assert layout.pools[0].num_slots == 6


def test_unequal_page_bytes_get_separate_pools():
    specs = (
        FullAttention(1, 64, "float32"),
        SlidingWindow(1, 32, "float32", window=32),
        ChunkedLocal(1, 16, "float32", chunk=64),
    )
    layout = plan_layout(layers(*specs), memory_bytes=2**20, max_num_batched_tokens=16, **LIMITS)
    assert [group.pool for group in layout.groups] == [0, 1, 2]
    full, window, chunked = (pool.num_blocks - 1 for pool in layout.pools)
    assert full > chunked > window  # 16, 6 and 4 blocks for one longest request
    assert sum(pool.num_blocks * pool.slot_bytes * pool.num_slots for pool in layout.pools) <= 2**20


def test_hash_block_size_divides_all_block_sizes():
    mixed = layers(
        FullAttention(1, 8, "float32", block_size=24), SlidingWindow(1, 8, "float32", window=9)
    )
    assert plan_layout(mixed, memory_bytes=2**20, **LIMITS).hash_block_size == 8


def test_num_blocks_override_is_exact():
    layout = plan_layout(layers(FULL), memory_bytes=0, num_blocks=20, **LIMITS)
    assert layout.pools[0].num_blocks == 21  # and the null block


def test_too_little_memory_error_names_need_and_flags():
    with pytest.raises(ConfigError) as error:
        plan_layout(layers(FULL), memory_bytes=10 * 16 * FULL.token_bytes, **LIMITS)
    text = str(error.value)
    assert "--max-model-len 256 tokens needs 16 KV blocks" in text
    assert "gives 9" in text
    for flag in ("--max-model-len", "--kv-cache-memory-bytes", "--gpu-memory-utilization"):
        assert flag in text


def test_too_few_blocks_error_names_the_override():
    with pytest.raises(ConfigError, match="--num-gpu-blocks-override 15 gives 15"):
        plan_layout(layers(FULL), memory_bytes=2**30, num_blocks=15, **LIMITS)


def test_huge_memory_is_capped_to_useful_blocks():
    layout = plan_layout(layers(FULL), memory_bytes=2**45, **LIMITS)
    assert layout.pools[0].num_blocks == 65_537


def test_model_without_caching_layers_has_an_empty_layout():
    layout = plan_layout([], memory_bytes=0, **LIMITS)
    assert (layout.groups, layout.pools, layout.hash_block_size) == ([], [], 16)


def test_states_have_a_pool_with_room_for_all_requests():
    layout = plan_layout(
        layers(FULL, STATE, STATE), memory_bytes=2**25, state_block_size=60, **LIMITS
    )
    assert [(group.block_size, group.pool) for group in layout.groups] == [(16, 0), (64, 1)]
    assert layout.pools[1].slot_bytes == 608 + 4096  # parts begin at multiples of 16
    assert layout.pools[1].num_blocks == 8 * 4 + 1
    assert layout.hash_block_size == 16


def test_state_block_is_the_context_without_prefix_caching():
    layout = plan_layout(layers(FULL, STATE), memory_bytes=2**25, **LIMITS)
    assert layout.groups[1].block_size == 256
    assert layout.pools[1].num_blocks == 8 + 1


def test_states_take_up_to_half_of_scarce_memory():
    scarce = plan_layout(layers(FULL, STATE), memory_bytes=2**18, state_block_size=16, **LIMITS)
    taken = [pool.num_blocks * pool.block_bytes for pool in scarce.pools]
    assert sum(taken) <= 2**18
    assert taken[1] <= 2**17
    least = 17 * (16 * FULL.token_bytes + 4704) + 4704  # and a state of padding
    plan_layout(layers(FULL, STATE), memory_bytes=least, state_block_size=16, **LIMITS)
    with pytest.raises(ConfigError, match="KV blocks"):
        plan_layout(layers(FULL, STATE), memory_bytes=least - 1, state_block_size=16, **LIMITS)


def test_num_blocks_override_counts_attention_blocks():
    layout = plan_layout(
        layers(FULL, STATE), memory_bytes=0, num_blocks=20, state_block_size=64, **LIMITS
    )
    assert [pool.num_blocks for pool in layout.pools] == [21, 33]
    assert (
        plan_layout(layers(STATE), memory_bytes=0, num_blocks=20, **LIMITS).pools[0].num_blocks
        == 21
    )


def test_spare_states_reduce_usable_memory():
    bare = plan_layout(layers(FULL, STATE, STATE), memory_bytes=2**20, **LIMITS)
    spare = RecurrentState(STATE.parts, spare=12)
    layout = plan_layout(layers(FULL, spare, spare), memory_bytes=2**20, **LIMITS)
    state = next(
        index for index, group in enumerate(layout.groups) if isinstance(group.spec, RecurrentState)
    )
    pool = layout.groups[state].pool
    assert layout.first_spare_block(state) == layout.pools[pool].num_blocks
    assert layout.padding_block(state) == layout.first_spare_block(state) + 12
    assert layout.padding_block(1 - state) == 0, "attention's padding goes to the null block"
    taken = (
        sum(p.num_blocks * p.block_bytes for p in layout.pools)
        + 13 * layout.pools[pool].block_bytes
    )
    assert taken <= 2**20
    assert sum(p.num_blocks for p in layout.pools) < sum(p.num_blocks for p in bare.pools)
