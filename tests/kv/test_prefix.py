"""The hash chain: same facts, same key; any other fact, another key."""

import pytest

from core.kv.prefix import chain_root, extend_chain


def chain(tokens, *, size=4, root=None):
    keys = []
    extend_chain(keys, root or chain_root("model", "", {}), tokens, size, len(tokens) // size)
    return keys


def test_keys_are_long_enough_against_chosen_collisions():
    assert all(len(key) * 8 >= 128 for key in chain(list(range(8))))


def test_a_key_covers_every_earlier_token():
    one, other = chain(list(range(12))), chain([99, *range(1, 12)])
    assert not set(one) & set(other)


def test_equal_beginnings_have_equal_keys():
    assert chain(list(range(12)))[:2] == chain([*range(8), 1, 2, 3, 4])[:2]


def test_extending_step_by_step_gives_the_same_keys():
    tokens, keys = list(range(16)), []
    for links in (1, 1, 3, 4):
        extend_chain(keys, chain_root("model", "", {}), tokens, 4, links)
    assert keys == chain(tokens)


@pytest.mark.parametrize(
    "other",
    [
        ("model2", "", {}),
        ("model", "salt", {}),
        ("model", "", {"adapter": b"x"}),
        ("model", "", {"media": b"x"}),
        ("", "model", {}),
        ("model", "", {"salt": b""}),
    ],
)
def test_every_fact_in_the_root_separates(other):
    assert chain_root(*other) != chain_root("model", "", {})


def test_values_cannot_spell_other_facts():
    assert chain_root("m", "ab", {"c": b"d"}) != chain_root("m", "a", {"bc": b"d"})
