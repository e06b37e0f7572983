"""Leases over KV groups: examples, windows, hits as a fixpoint, and steps in flight."""

import pytest

from core.kv import KVManager, plan_layout
from core.model_spec.kv import ChunkedLocal, FullAttention, LayerKV, RecurrentState, SlidingWindow
from core.testing.invariants import check_kv

FULL = FullAttention(2, 64, "bfloat16")
WINDOW = SlidingWindow(2, 64, "bfloat16", window=32)
STATE = RecurrentState((((4, 8), "float32"),), block_size=32)


def make_manager(*specs, num_blocks=100, block_size=16, **options):
    layers = [LayerKV(f"layer{i}", spec) for i, spec in enumerate(specs)]
    layout = plan_layout(
        layers,
        block_size=block_size,
        memory_bytes=0,
        num_blocks=num_blocks,
        max_model_len=1,
        max_num_seqs=10,
    )
    return KVManager(layout, **options)


def admit(kv, lease, hit, tokens):
    return kv.admit(lease, hit, hit.num_tokens, len(tokens), len(tokens), len(tokens))


def start(kv, tokens, salt=""):
    """Open a lease, admit it with its hit, and publish all tokens, like the scheduler."""
    lease = kv.open_lease(salt)
    hit = kv.find_longest_hit(lease, tokens, len(tokens) - 1)
    assert admit(kv, lease, hit, tokens)
    kv.publish(lease, tokens, len(tokens))
    return lease, hit.num_tokens


def held(lease):
    return sum(bool(block) for table in lease.tables for block in table)


def test_hybrid_request_of_112_tokens_holds_11_blocks():
    kv = make_manager(*[FULL, WINDOW, WINDOW] * 10)
    lease, _ = start(kv, list(range(112)))
    assert held(lease) == 21
    kv.trim(lease, 112)
    assert held(lease) == 11
    check_kv(kv, [lease])


def test_ten_block_reuse_example():
    """Ten blocks of 4 tokens: two requests share a prefix and end; a third hits the rest."""
    kv = make_manager(FULL, num_blocks=10, block_size=4)
    zero = list(range(15))
    first, _ = start(kv, zero)
    assert first.tables == [[1, 2, 3, 4]]
    zero += [15, 16]
    assert kv.extend(first, 15, 17) == [(0, [5])]
    kv.publish(first, zero, 17)
    second, cached = start(kv, [*range(10), 50, 51, 52, 53])
    assert cached == 8
    assert second.tables == [[1, 2, 6, 7]]
    kv.close_lease(first)
    kv.close_lease(second)
    third, cached = start(kv, [*range(12), *range(60, 77)])
    assert cached == 12
    # Allocated: the three never used, then the partial and the full block freed first.
    assert third.tables == [[1, 2, 3, 8, 9, 10, 5, 4]]
    check_kv(kv, [third])


def test_at_least_one_token_is_computed():
    kv = make_manager(FULL)
    start(kv, list(range(32)))
    assert start(kv, list(range(32)))[1] == 16
    assert start(kv, list(range(33)))[1] == 32


def test_different_salts_do_not_share():
    kv = make_manager(FULL)
    start(kv, list(range(33)), salt="a")
    assert start(kv, list(range(33)), salt="b")[1] == 0
    assert start(kv, list(range(33)), salt="a")[1] == 32


def test_different_domains_do_not_share():
    kv = make_manager(FULL)
    tokens = list(range(33))
    start(kv, tokens)
    assert (
        kv.find_longest_hit(kv.open_lease("", [("adapter", b"hash")]), tokens, 32).num_tokens == 0
    )


def test_disabled_prefix_caching_finds_nothing():
    kv = make_manager(FULL, prefix_caching=False)
    start(kv, list(range(33)))
    assert start(kv, list(range(33)))[1] == 0


def test_windowed_group_hit_has_only_visible_blocks():
    kv = make_manager(FULL, WINDOW)
    tokens = list(range(97))
    lease, _ = start(kv, tokens)
    kv.trim(lease, 96)
    hit = kv.find_longest_hit(kv.open_lease(), tokens, 96)
    assert hit.num_tokens == 96
    assert [len(blocks) for blocks in hit.blocks] == [6, 2]


def test_hit_is_limited_by_every_group():
    kv = make_manager(FULL, WINDOW, num_blocks=40)
    tokens = list(range(97))
    lease, _ = start(kv, tokens)
    lost = lease.tables[1][5]
    kv.close_lease(lease)
    kv.pools[0].remove_key(lost)
    # Without the window's block 80..95 the longest prefix ends at 80, which reads 49..79: block 3
    # and 4.
    hit = kv.find_longest_hit(kv.open_lease(), tokens, 96)
    assert hit.num_tokens == 80
    assert [len(blocks) for blocks in hit.blocks] == [5, 2]


def test_chunked_group_hit_has_only_the_current_chunk():
    kv = make_manager(FULL, ChunkedLocal(2, 64, "bfloat16", chunk=32))
    tokens = list(range(97))
    start(kv, tokens)
    hit = kv.find_longest_hit(kv.open_lease(), tokens, 96)
    assert hit.num_tokens == 96
    assert [len(blocks) for blocks in hit.blocks] == [6, 0]
    assert [len(blocks) for blocks in kv.find_longest_hit(kv.open_lease(), tokens, 90).blocks] == [
        5,
        1,
    ]


def test_hits_are_aligned_to_all_block_sizes():
    kv = make_manager(
        FullAttention(1, 8, "float32", block_size=8),
        SlidingWindow(1, 8, "float32", block_size=12, window=20),
    )
    start(kv, list(range(61)))
    assert start(kv, list(range(61)))[1] == 48


def test_specs_with_unequal_sizes_hold_their_own_blocks():
    kv = make_manager(
        FullAttention(1, 64, "float32"),
        SlidingWindow(1, 32, "float32", window=32),
        ChunkedLocal(1, 16, "float32", chunk=64),
        num_blocks=300,
    )
    lease, _ = start(kv, list(range(112)))
    kv.trim(lease, 112)
    assert [sum(map(bool, table)) for table in lease.tables] == [7, 2, 3]
    check_kv(kv, [lease])


def test_failed_allocation_takes_nothing():
    kv = make_manager(FULL, WINDOW, num_blocks=5)
    lease = kv.open_lease()
    assert not kv.admit(lease, kv.find_longest_hit(lease, [], 0), 0, 48, 48, 48)
    assert kv.admit(lease, kv.find_longest_hit(lease, [], 0), 0, 32, 32, 32)
    assert kv.extend(lease, 32, 33) is None
    check_kv(kv, [lease])


def test_admission_requires_room_for_the_whole_sequence():
    kv = make_manager(FULL, num_blocks=5)
    lease = kv.open_lease()
    assert not kv.admit(lease, kv.find_longest_hit(lease, [], 0), 0, 16, 96, 16)
    assert kv.admit(lease, kv.find_longest_hit(lease, [], 0), 0, 16, 80, 16)


def test_shared_window_blocks_do_not_count_as_freed():
    kv = make_manager(WINDOW, num_blocks=5)
    tokens = list(range(49))
    other, _ = start(kv, tokens)
    kv.trim(other, 48)
    lease = kv.open_lease()
    hit = kv.find_longest_hit(lease, tokens, 48)
    assert [len(blocks) for blocks in hit.blocks] == [2]
    assert not kv.admit(lease, hit, 48, 64, 96, 16)
    kv.close_lease(other)
    assert kv.admit(lease, hit, 48, 64, 96, 16)
    for position in (64, 80):
        kv.trim(lease, position)
        assert kv.extend(lease, position, position + 16) is not None
    check_kv(kv, [lease])


def test_freed_blocks_wait_for_steps_in_flight():
    kv = make_manager(FULL, num_blocks=4)
    lease, _ = start(kv, list(range(64)))
    kv.step_issued(1)
    kv.step_issued(2)
    kv.close_lease(lease)
    other = kv.open_lease()
    assert kv.extend(other, 0, 16) is None
    assert kv.will_fit(other, 0, 16)
    kv.step_returned(1)
    assert kv.extend(other, 0, 16) is None
    kv.step_returned(2)
    assert kv.extend(other, 0, 16) == [(0, [4])]
    check_kv(kv, [other])


def test_forgotten_contents_are_not_found():
    kv = make_manager(FULL)
    lease, _ = start(kv, list(range(33)))
    kv.close_lease(lease, forget=True)
    assert start(kv, list(range(33)))[1] == 0


def test_cleared_blocks_stay_with_their_lease():
    kv = make_manager(FULL)
    lease, _ = start(kv, list(range(33)))
    kv.clear_prefix_cache(contents_valid=True)
    check_kv(kv, [lease])
    kv.close_lease(lease)
    assert start(kv, list(range(33)))[1] == 0


def test_usage_counts_held_blocks():
    kv = make_manager(FULL, num_blocks=10)
    assert kv.usage == 0
    lease, _ = start(kv, list(range(33)))
    assert kv.usage == pytest.approx(0.3)
    kv.close_lease(lease)
    assert kv.usage == 0


def test_longest_sequence_is_the_limit_of_capacity():
    kv = make_manager(FULL, num_blocks=10)
    assert kv.capacity.longest_sequence(1000, 64) == 160
    assert kv.capacity.fits(160, 64)
    assert not kv.capacity.fits(161, 64)


def test_windowed_model_fits_any_length():
    kv = make_manager(WINDOW, num_blocks=5)
    assert kv.capacity.fits(100_000, 16)
    assert not kv.capacity.fits(100_000, 64)


def test_state_takes_a_second_block_at_a_boundary():
    kv = make_manager(STATE, num_blocks=4, prefix_caching=False)
    lease, _ = start(kv, list(range(70)))
    kv.trim(lease, 70)
    assert lease.tables == [[0, 0, 3]]
    kv.trim(lease, 96)
    assert kv.extend(lease, 96, 97) == [(0, [4])]
    assert held(lease) == 2
    kv.trim(lease, 97)
    assert held(lease) == 1
    check_kv(kv, [lease])


def test_state_hits_are_limited_to_block_boundaries():
    kv = make_manager(FULL, STATE)
    tokens = list(range(100))
    lease, _ = start(kv, tokens)
    kv.trim(lease, 100)
    hit = kv.find_longest_hit(kv.open_lease(), tokens, 99)
    assert hit.num_tokens == 96
    assert [len(blocks) for blocks in hit.blocks] == [6, 1]
    assert kv.find_longest_hit(kv.open_lease(), tokens, 95).num_tokens == 64
    kv.close_lease(lease)
    kv.pools[1].remove_key(hit.blocks[1][0])
    assert kv.find_longest_hit(kv.open_lease(), tokens, 99).num_tokens == 64


def test_shared_state_is_never_written():
    kv = make_manager(STATE)
    first, _ = start(kv, list(range(64)))
    second, cached = start(kv, [*range(64), 1, 2])
    assert cached == 64
    assert second.tables[0] == [0, first.tables[0][1], 3]
    check_kv(kv, [first, second])
