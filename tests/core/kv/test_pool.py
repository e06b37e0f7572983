"""Block pool: order of reuse, references and keys."""

from core.kv.pool import BlockPool
from core.testing.invariants import check_pool


def test_blocks_are_allocated_in_order_without_the_null_block():
    assert BlockPool(5, [0]).allocate(4) == [1, 2, 3, 4]


def test_free_blocks_are_reused_in_lru_order():
    pool = BlockPool(6, [0])
    first = pool.allocate(2)
    second = pool.allocate(3)
    pool.release(second)
    pool.release(first)
    assert pool.allocate(5) == [5, 4, 3, 2, 1]


def test_free_block_is_cached_until_reuse():
    pool = BlockPool(3, [0])
    blocks = pool.allocate(2)
    pool.add_keys(0, [b"a"], [blocks[0]])
    pool.release(blocks)
    assert pool.cached_blocks(0) == {b"a": 1}
    assert pool.allocate(1) == [2]
    assert pool.cached_blocks(0) == {b"a": 1}
    assert pool.allocate(1) == [1]
    assert pool.cached_blocks(0) == {}


def test_touch_revives_free_and_shares_held_blocks():
    pool = BlockPool(4, [0])
    blocks = pool.allocate(2)
    pool.touch(blocks[:1])
    pool.release(blocks)
    assert (pool.refs[1], pool.refs[2], pool.num_free) == (1, 0, 2)
    pool.touch([2])
    assert pool.num_free == 1
    check_pool(pool, [0, 1, 1, 0])


def test_first_block_with_a_key_stays_cached():
    pool = BlockPool(4, [0, 1])
    one, two, three = pool.allocate(3)
    pool.add_keys(0, [b"a"], [one])
    pool.add_keys(0, [b"a"], [two])
    pool.add_keys(1, [b"a"], [three])
    assert (pool.cached_blocks(0), pool.cached_blocks(1)) == ({b"a": one}, {b"a": three})
    pool.remove_key(two)
    assert pool.cached_blocks(0) == {b"a": one}


def test_removing_all_keys_leaves_references():
    pool = BlockPool(3, [0])
    pool.add_keys(0, [b"a"], [pool.allocate(1)[0]])
    pool.remove_keys_since(0)
    assert pool.cached_blocks(0) == {}
    check_pool(pool, [0, 1, 0])
