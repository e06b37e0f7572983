"""Encoder blocks: allocated at admission, constant while a request runs, freed at its end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kv import Hit, KVManager, Lease, plan_layout
from core.model_spec.kv import CacheSpec, CrossAttention, FullAttention, LayerKV, SlidingWindow
from core.step import Span
from core.testing.invariants import check_kv

FULL = FullAttention(2, 64, "bfloat16")
WINDOW = SlidingWindow(2, 64, "bfloat16", window=10)
CROSS = CrossAttention(2, 64, "bfloat16", max_len=30)
NARROW = CrossAttention(1, 64, "bfloat16", max_len=30)


def make_manager(*specs: CacheSpec, num_blocks: int = 40, block_size: int = 4) -> KVManager:
    layers = [LayerKV(f"layer{i}", spec) for i, spec in enumerate(specs)]
    limits = {"block_size": block_size, "memory_bytes": 0, "num_blocks": num_blocks}
    return KVManager(plan_layout(layers, **limits, max_model_len=1, max_num_seqs=1))


def start(
    kv: KVManager, tokens: int, num_encoder_positions: int, end: int | None = None
) -> Lease | None:
    lease = kv.open_lease(num_encoder_positions=num_encoder_positions)
    return lease if kv.admit(lease, Hit(), 0, end or tokens, tokens, tokens) else None


def test_longest_request_includes_the_longest_encoder_input() -> None:
    layers = [LayerKV("self", FULL), LayerKV("cross", CROSS)]
    limits = {"block_size": 16, "memory_bytes": 1 << 20, "max_model_len": 100, "max_num_seqs": 1}
    kv = KVManager(plan_layout(layers, **limits))
    assert len(kv.layout.pools) == 1
    assert kv.capacity.fits(100, 100)
    kv = make_manager(FULL, CROSS, num_blocks=10)
    assert (
        kv.capacity.longest_sequence(100, 100) == 8
    )  # two blocks besides the eight of an input of 30 positions


def test_encoder_blocks_are_allocated_at_admission() -> None:
    kv = make_manager(FULL, CROSS)
    lease = start(kv, 5, 17, end=1)
    assert lease is not None
    assert [len(table) for table in lease.tables] == [1, 5]
    assert lease.capacity == 4
    assert kv.extend(lease, 4, 9) == [(0, lease.tables[0][1:])]
    assert [len(table) for table in lease.tables] == [3, 5]
    kv.trim(lease, 9)
    check_kv(kv, [lease])
    kv.close_lease(lease)
    check_kv(kv, [])
    assert kv.usage == 0


def test_request_without_encoder_positions_is_bounded_by_its_own_blocks() -> None:
    kv = make_manager(FULL, CROSS)
    lease = start(kv, 5, 0)
    assert lease is not None
    assert [len(table) for table in lease.tables] == [2, 0]
    assert lease.capacity == 8
    assert kv.extend(lease, 8, 9) == [(0, lease.tables[0][2:])]
    assert lease.capacity == 12
    check_kv(kv, [lease])


def test_failed_admission_takes_no_encoder_blocks() -> None:
    kv = make_manager(FULL, CROSS, num_blocks=12)
    first = start(kv, 8, 4)  # 2 + 1
    assert first is not None
    assert start(kv, 5, 29) is None  # 2 + 8
    check_kv(kv, [first])
    assert start(kv, 5, 28) is not None  # 2 + 7


def test_cross_attention_disables_prefix_caching() -> None:
    kv = make_manager(FULL, CROSS)
    assert not kv.prefix_caching
    lease = start(kv, 9, 4)
    assert lease is not None
    kv.publish(lease, list(range(9)), 9)
    assert kv.find_longest_hit(kv.open_lease(num_encoder_positions=4), list(range(9)), 8) == Hit()


def test_input_in_prefix_keys_shares_all_but_encoder_blocks() -> None:
    keyed = CrossAttention(2, 64, "bfloat16", max_len=30, input_in_keys=True)
    kv = make_manager(FULL, keyed)
    tokens = list(range(10))
    first = kv.open_lease(num_encoder_positions=17, spans=[Span(1, 1, "image", b"1" * 16)])
    assert kv.admit(first, Hit(), 0, 10, 10, 10)
    kv.publish(first, tokens, 10)
    other = kv.open_lease(num_encoder_positions=17, spans=[Span(1, 1, "image", b"2" * 16)])
    assert kv.find_longest_hit(other, tokens, 9) == Hit()
    same = kv.open_lease(num_encoder_positions=17, spans=[Span(1, 1, "image", b"1" * 16)])
    hit = kv.find_longest_hit(same, tokens, 9)
    assert hit == Hit(8, [first.tables[0][:2], []], 8)
    assert kv.admit(same, hit, 8, 10, 10, 10)
    assert same.tables[0][:2] == first.tables[0][:2]
    assert [len(table) for table in same.tables] == [3, 5]
    assert not set(same.tables[1]) & set(first.tables[1])
    check_kv(kv, [first, same])
    for lease in (first, same):
        kv.close_lease(lease)
    check_kv(kv, [])


@pytest.mark.parametrize("specs", [(FULL, CROSS), (FULL, NARROW), (FULL, WINDOW, CROSS)], ids=len)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_random_requests_free_every_block(
    specs: tuple[CacheSpec, ...], data: st.DataObject
) -> None:
    kv = make_manager(*specs, num_blocks=30)
    running: dict[int, tuple[Lease, int]] = {}
    step = num_started = 0
    for _ in range(data.draw(st.integers(1, 25), label="events")):
        event = data.draw(
            st.sampled_from(("start", "go on", "end", "issue", "return")), label="event"
        )
        if event == "start":
            tokens, num_encoder_positions = data.draw(
                st.tuples(st.integers(1, 12), st.integers(0, 30)), label="size"
            )
            lease = start(kv, tokens, num_encoder_positions)
            if lease is not None:
                num_started += 1
                running[num_started] = lease, tokens
        elif event in ("go on", "end") and running:
            key = data.draw(st.sampled_from(sorted(running)), label="which")
            lease, tokens = running.pop(key)
            if event == "end" or tokens >= 60:
                kv.close_lease(lease)
                continue
            cross = list(lease.tables[-1])
            kv.trim(lease, tokens)
            more = data.draw(st.integers(1, 6), label="tokens")
            grown = kv.extend(lease, tokens, tokens + more)
            assert lease.tables[-1] == cross
            assert grown is None or lease.capacity >= tokens + more
            assert grown is None or all(group != len(specs) - 1 for group, _ in grown)
            running[key] = lease, tokens + (0 if grown is None else more)
        elif event == "issue":
            step += 1
            kv.step_issued(step)
        elif event == "return":
            kv.step_returned(step)
        for lease, _ in running.values():
            assert len(lease.tables[-1]) == -(-lease.num_encoder_positions // 4)
        check_kv(kv, [lease for lease, _ in running.values()])
    for lease, _ in running.values():
        kv.close_lease(lease)
    kv.step_returned(step)
    check_kv(kv, [])
    assert kv.usage == 0
