"""The hash chain: same facts, same key; any other fact, another key."""

import pytest

from core.kv.prefix import chain_root, extend_chain, span_marks
from core.step import Span


def chain(tokens, *, size=4, root=None, marks=None):
    keys = []
    extend_chain(
        keys, root or chain_root("model", "", ()), tokens, size, len(tokens) // size, marks or {}
    )
    return keys


def test_keys_are_long_enough_against_chosen_collisions():
    assert all(len(key) * 8 >= 128 for key in chain(list(range(8))))


def test_a_key_covers_every_earlier_token():
    one = chain(list(range(12)))
    other = chain([99, *range(1, 12)])
    assert not set(one) & set(other)


def test_equal_beginnings_have_equal_keys():
    assert chain(list(range(12)))[:2] == chain([*range(8), 1, 2, 3, 4])[:2]


def test_extending_step_by_step_gives_the_same_keys():
    tokens = list(range(16))
    keys = []
    for links in (1, 1, 3, 4):
        extend_chain(keys, chain_root("model", "", ()), tokens, 4, links, {})
    assert keys == chain(tokens)


@pytest.mark.parametrize(
    "other",
    [
        ("model2", "", ()),
        ("model", "salt", ()),
        ("model", "", [("adapter", b"x")]),
        ("model", "", [("media", b"x")]),
        ("", "model", ()),
        ("model", "", [("salt", b"")]),
    ],
)
def test_every_fact_in_the_root_separates(other):
    assert chain_root(*other) != chain_root("model", "", ())


def test_one_name_is_a_salt_an_adapter_and_a_model_without_being_taken_for_another():
    name = "tenant"
    facts = [
        ("model", name, ()),
        (name, "", ()),
        *(("model", "", [(domain, name.encode())]) for domain in ("adapter", "salt", "model")),
        ("model", "", [(name, b"")]),
        ("model", "", ()),
    ]
    assert len({chain_root(*each) for each in facts}) == len(facts)


def test_values_cannot_spell_other_facts():
    assert chain_root("m", "ab", [("c", b"d")]) != chain_root("m", "a", [("bc", b"d")])


def test_the_order_of_facts_is_none_but_none_is_lost():
    one = ("adapter", b"x")
    other = ("adapter", b"y")
    assert (
        chain_root("m", "", [one, other])
        == chain_root("m", "", [other, one])
        != chain_root("m", "", [other])
    )


IMAGE = Span(5, 6, "image", b"0123456789abcdef")


def test_a_span_changes_the_links_it_lies_in_and_all_behind_them():
    plain = chain(list(range(20)))
    marked = chain(list(range(20)), marks=span_marks([IMAGE], 4))
    assert [one == other for one, other in zip(plain, marked, strict=True)] == [
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "other",
    [
        Span(4, 6, "image", IMAGE.content_hash),
        Span(5, 5, "image", IMAGE.content_hash),
        Span(5, 6, "imag", b"e" + IMAGE.content_hash),
        Span(5, 6, "video", IMAGE.content_hash),
        Span(5, 6, "image", b"0123456789abcdeg"),
    ],
)
def test_every_fact_of_a_span_separates(other):
    keys = [chain(list(range(20)), marks=span_marks([span], 4)) for span in (IMAGE, other, IMAGE)]
    assert keys[0][-1] != keys[1][-1]
    assert keys[0] == keys[2]


def test_spans_in_one_link_are_both_counted_in_any_order():
    other = Span(11, 1, "image", b"0123456789abcdef")
    assert span_marks([IMAGE, other], 4) == span_marks([other, IMAGE], 4) != span_marks([other], 4)


@pytest.mark.parametrize(
    "fields", [(-1, 6, "image", bytes(16)), (0, 0, "image", bytes(16)), (0, 1, "image", bytes(15))]
)
def test_a_span_that_identifies_nothing_is_refused(fields):
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Span(*fields)
