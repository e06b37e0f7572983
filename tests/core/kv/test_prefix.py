"""Prefix hash chain: equal facts give equal keys, any other fact another key."""

import pytest

from core.kv.prefix import chain_root, extend_chain, span_extra_keys
from core.step import Span


def chain(tokens, *, size=4, root=None, marks=None):
    keys = []
    extend_chain(
        keys, root or chain_root("model", "", ()), tokens, size, len(tokens) // size, marks or {}
    )
    return keys


def test_block_keys_are_collision_resistant():
    assert all(len(key) * 8 >= 128 for key in chain(list(range(8))))


def test_block_key_covers_every_earlier_token():
    one = chain(list(range(12)))
    other = chain([99, *range(1, 12)])
    assert not set(one) & set(other)


def test_equal_prefixes_have_equal_keys():
    assert chain(list(range(12)))[:2] == chain([*range(8), 1, 2, 3, 4])[:2]


def test_incremental_extension_gives_the_same_keys():
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
def test_every_root_fact_changes_the_root(other):
    assert chain_root(*other) != chain_root("model", "", ())


def test_same_name_in_different_facts_gives_different_roots():
    name = "tenant"
    facts = [
        ("model", name, ()),
        (name, "", ()),
        *(("model", "", [(domain, name.encode())]) for domain in ("adapter", "salt", "model")),
        ("model", "", [(name, b"")]),
        ("model", "", ()),
    ]
    assert len({chain_root(*each) for each in facts}) == len(facts)


def test_facts_are_length_prefixed():
    assert chain_root("m", "ab", [("c", b"d")]) != chain_root("m", "a", [("bc", b"d")])


def test_root_ignores_the_order_of_facts():
    one = ("adapter", b"x")
    other = ("adapter", b"y")
    assert (
        chain_root("m", "", [one, other])
        == chain_root("m", "", [other, one])
        != chain_root("m", "", [other])
    )


IMAGE = Span(5, 6, "image", b"0123456789abcdef")


def test_span_changes_its_links_and_all_later_ones():
    plain = chain(list(range(20)))
    marked = chain(list(range(20)), marks=span_extra_keys([IMAGE], 4))
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
def test_every_span_fact_changes_the_keys(other):
    keys = [
        chain(list(range(20)), marks=span_extra_keys([span], 4)) for span in (IMAGE, other, IMAGE)
    ]
    assert keys[0][-1] != keys[1][-1]
    assert keys[0] == keys[2]


def test_spans_in_one_link_are_hashed_in_any_order():
    other = Span(11, 1, "image", b"0123456789abcdef")
    both = span_extra_keys([IMAGE, other], 4)
    assert both == span_extra_keys([other, IMAGE], 4)
    assert both != span_extra_keys([other], 4)


@pytest.mark.parametrize(
    "fields", [(-1, 6, "image", bytes(16)), (0, 0, "image", bytes(16)), (0, 1, "image", bytes(15))]
)
def test_invalid_span_is_rejected(fields):
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Span(*fields)
