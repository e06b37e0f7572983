"""Blocks: order of reuse, references, keys."""

from core.kv.pool import BlockPool


def test_blocks_are_taken_in_order_and_never_the_null_block():
    assert BlockPool(5, [0]).take(4) == [1, 2, 3, 4]


def test_freed_blocks_are_reused_least_recently_used_first_last_block_first():
    pool = BlockPool(6, [0])
    first = pool.take(2)
    second = pool.take(3)
    pool.give(second)
    pool.give(first)
    assert pool.take(5) == [5, 4, 3, 2, 1]


def test_a_freed_block_is_found_until_it_is_reused():
    pool = BlockPool(3, [0])
    blocks = pool.take(2)
    pool.remember(0, [b"a"], [blocks[0]])
    pool.give(blocks)
    assert pool.find(0) == {b"a": 1}
    assert pool.take(1) == [2]
    assert pool.find(0) == {b"a": 1}
    assert pool.take(1) == [1]
    assert pool.find(0) == {}


def test_touching_revives_a_free_block_and_shares_a_held_one():
    pool = BlockPool(4, [0])
    blocks = pool.take(2)
    pool.touch(blocks[:1])
    pool.give(blocks)
    assert (pool.refs[1], pool.refs[2], pool.num_free) == (1, 0, 2)
    pool.touch([2])
    assert pool.num_free == 1
    pool.check([0, 1, 1, 0])


def test_the_first_block_with_a_key_stays_the_one_found():
    pool = BlockPool(4, [0, 1])
    one, two, three = pool.take(3)
    pool.remember(0, [b"a"], [one])
    pool.remember(0, [b"a"], [two])
    pool.remember(1, [b"a"], [three])
    assert (pool.find(0), pool.find(1)) == ({b"a": one}, {b"a": three})
    pool.forget(two)
    assert pool.find(0) == {b"a": one}


def test_forgetting_all_leaves_references_alone():
    pool = BlockPool(3, [0])
    pool.remember(0, [b"a"], [pool.take(1)[0]])
    pool.forget_since(0)
    assert pool.find(0) == {}
    pool.check([0, 1, 0])
