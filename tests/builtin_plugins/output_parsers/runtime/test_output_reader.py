"""The parser runtime: held-back text, layout, and the text of broken calls."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.output_parsers.api import (
    Broken,
    Call,
    OutputParser,
    OutputReader,
    ParseRequest,
    Reading,
    ToolFormat,
    typed_arguments,
    typed_value,
)
from builtin_plugins.output_parsers.testing import Parsed, Reader

PARTS = st.sampled_from(
    ["<a>", "</a>", "<ab>", "<", "a", ">", "x", " ", "\n", '{"k": 1}', "{", '"', "[1]", "é🙂"]
)


def letters(reader: OutputReader, request: ParseRequest) -> Reading:
    while marker := (yield from reader.content_until_call("<a>", "<ab>", "<")):
        with reader.attempt():
            if marker == "<":
                yield from reader.expect("a>")
            reader.add_call(marker, (yield from reader.read_object()))
            yield from reader.expect("</a>")


LETTERS = ToolFormat(
    letters, markers=("<a>", "</a>", "<ab>"), call_id=lambda name, index: f"{name}{index}"
)


@settings(deadline=None, max_examples=50)
@given(st.lists(PARTS, max_size=12).map("".join))
def test_chunking_changes_nothing_and_loses_no_text(text: str) -> None:
    for special in (frozenset[str](), frozenset(LETTERS.markers)):
        Reader(tools=LETTERS, special=special).check(text)
    found = Reader(tools=LETTERS).check(text)
    if not found.calls:
        assert found.content == text.lstrip()


def test_only_marker_prefixes_are_held_back() -> None:
    parser = OutputParser(ParseRequest(), tools=LETTERS)
    assert [parser.feed(piece).content for piece in ("one <", "b", " two  ", "three")] == [
        "one",
        " <b",
        " two",
        "  three",
    ]


def test_complete_calls_are_returned_at_once() -> None:
    parser = OutputParser(ParseRequest(), tools=LETTERS)
    assert parser.feed('<a>{"k": 1}</a').calls == []
    assert parser.feed('><ab>{"k": 2}</a>').calls == [
        Call("<a>", '{"k": 1}', "<a>0"),
        Call("<ab>", '{"k": 2}', "<ab>1"),
    ]


def test_white_space_is_layout_only_between_calls() -> None:
    found = Reader(tools=LETTERS).check('\n one \n<a>{"k": 1}</a> \n <a>{"k": 2}</a>\n\ntwo \n')
    assert found == Parsed("one \ntwo \n", (("<a>", {"k": 1}), ("<a>", {"k": 2})))


def test_values_are_converted_to_schema_types() -> None:
    cases = [
        ("5", {"type": "integer"}, 5),
        ("5", {"type": "string"}, "5"),
        ("5.0", {"type": "integer"}, 5),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["string", "null"]}, None),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("x", {"type": "integer"}, "x"),
        ("x", None, "x"),
        ("7", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 7),
        ("NaN", {"type": "number"}, "NaN"),
        ("1e999", {"type": "number"}, "1e999"),
        ("5", {"type": "int"}, 5),
        ("[" * 10_000, {"type": "array"}, "[" * 10_000),
    ]
    for text, schema, value in cases:
        assert typed_value(text, schema) == value, text


def test_argument_schema_references_are_resolved() -> None:
    schema = {
        "properties": {
            "place": {"$ref": "#/$defs/Place"},
            "n": {"$ref": "#/$defs/N"},
            "lost": {"$ref": "#/$defs/x"},
        },
        "$defs": {"Place": {"type": "object"}, "N": {"type": "integer"}},
    }
    texts = {"place": '{"city": "Oslo"}', "n": "3", "lost": "4"}
    assert typed_arguments(texts, schema, literal=False) == {
        "place": {"city": "Oslo"},
        "n": 3,
        "lost": "4",
    }


def names(reader: OutputReader, request: ParseRequest) -> Reading:
    yield from reader.skip_optional("first")
    while (yield from reader.content_until_call("<<", "<begin><go>")):
        with reader.attempt():
            name = yield from reader.read_name()
            if name == "note":
                reader.drop()
            elif not reader.at_line_start:
                raise Broken
            else:
                reader.add_call(name, (yield from reader.read_object("{")))
        yield from reader.skip_layout(">>")
    yield from reader.expect("never")


NAMES = ToolFormat(names, markers=("<<", "<begin>", "<go>"))


def test_names_layout_and_broken_calls() -> None:
    cases = [
        ('<<f "a": 1}>>\n<<g }>> end', Parsed("end", (("f", {"a": 1}), ("g", {})))),
        ("x <<note  y", Parsed("x y")),
        ('x <<f "a": 1}>>', Parsed('x <<f "a": 1}>>')),
        ('x\n<<f "a": 1}>', Parsed("x", (("f", {"a": 1}),))),
        (f"<<{'f' * 300} }}", Parsed(f"<<{'f' * 300} }}")),
        (" first thing", Parsed("thing")),
        ("  fir", Parsed("fir")),
        (">", Parsed(">")),
    ]
    for text, expected in cases:
        assert Reader(tools=NAMES).check(text, count=50) == expected, text


def test_marker_of_two_special_tokens_requires_both() -> None:
    reader = Reader(tools=NAMES, special=frozenset({"<begin>", "<go>"}))
    assert reader.check("<begin><go>f }", count=50) == Parsed(calls=(("f", {}),))
    assert reader.read([("<begin>", ((0, 7),)), ("<go>f }", ())]) == Parsed(content="<go>f }")


def test_special_tokens_are_visible_only_in_broken_calls() -> None:
    special = frozenset({"<a>", "<eos>"})
    found = Reader(tools=LETTERS, special=special).check(
        'x<a>{"k": 1<a>{"k": 2}</a> y<eos>', count=50
    )
    assert found == Parsed('x<a>{"k": 1y', (("<a>", {"k": 2}),))
