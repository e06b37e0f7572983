"""Leases over groups: the worked examples, windows, hits as a fixpoint, blocks of steps in flight."""

import pytest

from core.kv import KVManager, plan_layout
from core.model_spec.kv import ChunkedLocal, FullAttention, LayerKV, RecurrentState, SlidingWindow

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
    """Open a lease, take the hit and room for all tokens, and commit them, as the scheduler would."""
    lease = kv.open(salt)
    hit = kv.find(lease, tokens, len(tokens) - 1)
    assert admit(kv, lease, hit, tokens)
    kv.commit(lease, tokens, len(tokens))
    return lease, hit.num_tokens


def held(lease):
    return sum(bool(block) for table in lease.tables for block in table)


def test_length_112_holds_11_blocks_with_ten_full_and_twenty_sliding_layers():
    kv = make_manager(*[FULL, WINDOW, WINDOW] * 10)
    lease, _ = start(kv, list(range(112)))
    assert held(lease) == 21
    kv.trim(lease, 112)
    assert held(lease) == 11
    kv.check([lease])


def test_the_ten_block_example_of_reuse():
    """Blocks of 4 tokens, 10 of them; two requests share a prefix, end, and a third finds what is
    left.
    """
    kv = make_manager(FULL, num_blocks=10, block_size=4)
    zero = list(range(15))
    first, _ = start(kv, zero)
    assert first.tables == [[1, 2, 3, 4]]
    zero += [15, 16]
    assert kv.extend(first, 15, 17) == [(0, [5])]
    kv.commit(first, zero, 17)
    second, cached = start(kv, [*range(10), 50, 51, 52, 53])
    assert cached == 8
    assert second.tables == [[1, 2, 6, 7]]
    kv.close(first)
    kv.close(second)
    third, cached = start(kv, [*range(12), *range(60, 77)])
    assert cached == 12
    # Taken: the three never used, then the partial block and the full one that ended first.
    assert third.tables == [[1, 2, 3, 8, 9, 10, 5, 4]]
    kv.check([third])


def test_at_least_one_token_is_computed():
    kv = make_manager(FULL)
    start(kv, list(range(32)))
    assert start(kv, list(range(32)))[1] == 16
    assert start(kv, list(range(33)))[1] == 32


def test_salts_do_not_share():
    kv = make_manager(FULL)
    start(kv, list(range(33)), salt="a")
    assert start(kv, list(range(33)), salt="b")[1] == 0
    assert start(kv, list(range(33)), salt="a")[1] == 32


def test_extras_do_not_share():
    kv = make_manager(FULL)
    tokens = list(range(33))
    start(kv, tokens)
    assert kv.find(kv.open("", [("adapter", b"hash")]), tokens, 32).num_tokens == 0


def test_prefix_caching_off_finds_nothing():
    kv = make_manager(FULL, prefix_caching=False)
    start(kv, list(range(33)))
    assert start(kv, list(range(33)))[1] == 0


def test_a_windowed_group_needs_only_the_blocks_inside_the_window():
    kv = make_manager(FULL, WINDOW)
    tokens = list(range(97))
    lease, _ = start(kv, tokens)
    kv.trim(lease, 96)
    hit = kv.find(kv.open(), tokens, 96)
    assert hit.num_tokens == 96
    assert [len(blocks) for blocks in hit.blocks] == [6, 2]


def test_a_hit_is_what_every_group_can_serve():
    kv = make_manager(FULL, WINDOW, num_blocks=40)
    tokens = list(range(97))
    lease, _ = start(kv, tokens)
    lost = lease.tables[1][5]
    kv.close(lease)
    kv.pools[0].forget(lost)
    # Without the window's block 80..95 the longest prefix ends at 80, which reads 49..79: block 3
    # and 4.
    hit = kv.find(kv.open(), tokens, 96)
    assert hit.num_tokens == 80
    assert [len(blocks) for blocks in hit.blocks] == [5, 2]


def test_a_chunked_group_needs_only_the_current_chunk():
    kv = make_manager(FULL, ChunkedLocal(2, 64, "bfloat16", chunk=32))
    tokens = list(range(97))
    start(kv, tokens)
    hit = kv.find(kv.open(), tokens, 96)
    assert hit.num_tokens == 96
    assert [len(blocks) for blocks in hit.blocks] == [6, 0]
    assert [len(blocks) for blocks in kv.find(kv.open(), tokens, 90).blocks] == [5, 1]


def test_hits_are_aligned_to_all_block_sizes():
    kv = make_manager(
        FullAttention(1, 8, "float32", block_size=8),
        SlidingWindow(1, 8, "float32", block_size=12, window=20),
    )
    start(kv, list(range(61)))
    assert start(kv, list(range(61)))[1] == 48


def test_three_specs_with_unequal_head_sizes_hold_what_each_needs():
    kv = make_manager(
        FullAttention(1, 64, "float32"),
        SlidingWindow(1, 32, "float32", window=32),
        ChunkedLocal(1, 16, "float32", chunk=64),
        num_blocks=300,
    )
    lease, _ = start(kv, list(range(112)))
    kv.trim(lease, 112)
    assert [sum(map(bool, table)) for table in lease.tables] == [7, 2, 3]
    kv.check([lease])


def test_allocation_failure_is_a_value_and_takes_nothing():
    kv = make_manager(FULL, WINDOW, num_blocks=5)
    lease = kv.open()
    assert not kv.admit(lease, kv.find(lease, [], 0), 0, 48, 48, 48)
    assert kv.admit(lease, kv.find(lease, [], 0), 0, 32, 32, 32)
    assert kv.extend(lease, 32, 33) is None
    kv.check([lease])


def test_starting_needs_room_for_the_whole_sequence_not_only_for_the_first_chunk():
    kv = make_manager(FULL, num_blocks=5)
    lease = kv.open()
    assert not kv.admit(lease, kv.find(lease, [], 0), 0, 16, 96, 16)
    assert kv.admit(lease, kv.find(lease, [], 0), 0, 16, 80, 16)


def test_blocks_of_a_window_that_others_hold_too_do_not_count_as_coming_back():
    kv = make_manager(WINDOW, num_blocks=5)
    tokens = list(range(49))
    other, _ = start(kv, tokens)
    kv.trim(other, 48)
    lease = kv.open()
    hit = kv.find(lease, tokens, 48)
    assert [len(blocks) for blocks in hit.blocks] == [2]
    assert not kv.admit(lease, hit, 48, 64, 96, 16)
    kv.close(other)
    assert kv.admit(lease, hit, 48, 64, 96, 16)
    for position in (64, 80):
        kv.trim(lease, position)
        assert kv.extend(lease, position, position + 16) is not None
    kv.check([lease])


def test_blocks_given_back_wait_for_the_steps_in_flight():
    kv = make_manager(FULL, num_blocks=4)
    lease, _ = start(kv, list(range(64)))
    kv.step_issued(1)
    kv.step_issued(2)
    kv.close(lease)
    other = kv.open()
    assert kv.extend(other, 0, 16) is None
    assert kv.will_fit(other, 0, 16)
    kv.step_returned(1)
    assert kv.extend(other, 0, 16) is None
    kv.step_returned(2)
    assert kv.extend(other, 0, 16) == [(0, [4])]
    kv.check([other])


def test_contents_that_cannot_be_trusted_are_not_found_again():
    kv = make_manager(FULL)
    lease, _ = start(kv, list(range(33)))
    kv.close(lease, forget=True)
    assert start(kv, list(range(33)))[1] == 0


def test_what_is_forgotten_stays_with_who_has_it():
    kv = make_manager(FULL)
    lease, _ = start(kv, list(range(33)))
    kv.forget_all(right=True)
    kv.check([lease])
    kv.close(lease)
    assert start(kv, list(range(33)))[1] == 0


def test_usage_counts_held_blocks_only():
    kv = make_manager(FULL, num_blocks=10)
    assert kv.usage == 0
    lease, _ = start(kv, list(range(33)))
    assert kv.usage == pytest.approx(0.3)
    kv.close(lease)
    assert kv.usage == 0


def test_longest_is_the_limit_of_what_fits():
    kv = make_manager(FULL, num_blocks=10)
    assert kv.longest(1000, 64) == 160
    assert kv.fits_empty(160, 64)
    assert not kv.fits_empty(161, 64)


def test_a_windowed_model_fits_any_length_in_few_blocks():
    kv = make_manager(WINDOW, num_blocks=5)
    assert kv.fits_empty(100_000, 16)
    assert not kv.fits_empty(100_000, 64)


def test_a_state_takes_one_block_and_a_second_where_a_token_crosses_a_boundary():
    kv = make_manager(STATE, num_blocks=4, prefix_caching=False)
    lease, _ = start(kv, list(range(70)))
    kv.trim(lease, 70)
    assert lease.tables == [[0, 0, 3]]
    kv.trim(lease, 96)
    assert kv.extend(lease, 96, 97) == [(0, [4])]
    assert held(lease) == 2
    kv.trim(lease, 97)
    assert held(lease) == 1
    kv.check([lease])


def test_states_are_found_at_boundaries_and_shorten_what_attention_finds():
    kv = make_manager(FULL, STATE)
    tokens = list(range(100))
    lease, _ = start(kv, tokens)
    kv.trim(lease, 100)
    hit = kv.find(kv.open(), tokens, 99)
    assert hit.num_tokens == 96
    assert [len(blocks) for blocks in hit.blocks] == [6, 1]
    assert kv.find(kv.open(), tokens, 95).num_tokens == 64
    kv.close(lease)
    kv.pools[1].forget(hit.blocks[1][0])
    assert kv.find(kv.open(), tokens, 99).num_tokens == 64


def test_a_state_that_is_shared_is_read_and_never_taken_to_write():
    kv = make_manager(STATE)
    first, _ = start(kv, list(range(64)))
    second, cached = start(kv, [*range(64), 1, 2])
    assert cached == 64
    assert second.tables[0] == [0, first.tables[0][1], 3]
    kv.check([first, second])
