"""What every grammar backend must hold to: outputs along its masks match, and states go back and
begin anew exactly.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from builtin_plugins.grammar_backends.contract import Constraint, GrammarBackend, Vocabulary
from core.api import InvalidRequest

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = GrammarBackend
_WORDS: Final = (b"true", b'": ', b'{"', b'"}', b"ab", b"12", "é".encode(), b"", b"")
_VOCABULARY: Final = Vocabulary((*(bytes([i]) for i in range(256)), *_WORDS), (263,))
_NUM_TOKENS: Final = len(_VOCABULARY.tokens)
_END: Final = 263
_SPECIAL: Final = 264
_MAX_TOKENS: Final = 400
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["ab", "é", None]},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "size", "kind", "more"],
    "additionalProperties": False,
}


def _is_of_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        set(value) == set(_SCHEMA["properties"])  # type: ignore[call-overload]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and type(value["size"]) is int
        and 0 <= value["size"] <= 99
        and value["kind"] in ("ab", "é", None)
        and len(value["more"]) <= 2
        and all(type(item) is bool for item in value["more"])
    )


def _tag() -> str:
    """Return a structural tag: a token that stands for no text, then one or more objects between
    texts.
    """
    schema = {
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    call = {
        "type": "sequence",
        "elements": [
            {"type": "token", "token": _SPECIAL},
            {
                "type": "or",
                "elements": [{"type": "const_string", "value": text} for text in ("<f>", "<fg>")],
            },
            {"type": "json_schema", "json_schema": {"type": "object", **schema}},
            {"type": "const_string", "value": "</f>"},
        ],
    }
    more = {
        "type": "star",
        "content": {
            "type": "sequence",
            "elements": [{"type": "const_string", "value": "; "}, call],
        },
    }
    return json.dumps(
        {"type": "structural_tag", "format": {"type": "sequence", "elements": [call, more]}}
    )


_TAGGED: Final = r'<fg?>\{"a": ?(true|false)\}</f>'
_EXAMPLES: Final[tuple[tuple[Constraint, Callable[[str], Any]], ...]] = (
    (Constraint("json", json.dumps(_SCHEMA), any_whitespace=False), _is_of_schema),
    (Constraint("regex", "[a-c]{2,5}(12|é)+x?"), re.compile("[a-c]{2,5}(12|é)+x?").fullmatch),
    (
        Constraint("structural_tag", _tag(), any_whitespace=False),
        re.compile(f"{_TAGGED}(; {_TAGGED})*").fullmatch,
    ),
    (
        Constraint("choice", json.dumps(["yes", 'n"o\n', "été"])),
        ["yes", 'n"o\n', "été"].__contains__,
    ),
)
_ELSEWHERE: Final = (
    '{"type": "object", "properties": {"a": {"$ref": "http://localhost/a.json"}}, '
    '"required": ["a"]}'
)
_BROKEN: Final = (
    Constraint("json", '{"type": "objekt"}'),
    Constraint("json", _ELSEWHERE),
    Constraint("regex", "(ab"),
)
_OPEN: Final = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}


def check_outputs_along_the_masks_match(subject: Subject) -> None:
    """Whatever tokens are drawn from the masks, a finished output matches the constraint."""
    ended = 0
    for constraint, matches in _served(subject):
        grammar = subject.target(_VOCABULARY).compile(constraint)
        for seed in range(8):
            tokens = _walk(grammar.start(), random.Random(seed))
            if tokens[-1] == _END:
                ended += 1
                text = b"".join(_VOCABULARY.tokens[token] for token in tokens[:-1]).decode()
                assert matches(text), f"{subject.entry.name}: {text!r} came out under {constraint}."
    assert ended, (
        f"{subject.entry.name}: no output ended; end tokens must be allowed where an output may "
        "end."
    )


def check_tokens_outside_the_mask_are_refused(subject: Subject) -> None:
    """`accept` and `fill` agree, and a refused token changes nothing."""
    for constraint, _ in _served(subject):
        state = subject.target(_VOCABULARY).compile(constraint).start()
        allowed = _allowed(state)
        for token in set(range(_NUM_TOKENS)) - set(allowed):
            assert not state.accept(token), (
                f"{subject.entry.name}: token {token} is not in the mask, but accepted."
            )
        assert _allowed(state) == allowed, (
            f"{subject.entry.name}: a refused token changes the state."
        )


def check_rollback_goes_back(subject: Subject) -> None:
    """After a rollback the masks are those of before, also from after the end."""
    for constraint, _ in _served(subject):
        grammar = subject.target(_VOCABULARY).compile(constraint)
        tokens = [*_walk(grammar.start(), random.Random(1)), _END]
        state = grammar.start()
        masks = []
        for token in tokens:
            masks.append(_allowed(state))
            if not state.accept(token):
                break
        for back in (1, 2, len(masks)):
            done = len(masks) if state.is_done() else None
            if done is None or back > done:
                continue
            state.rollback(back)
            same = _allowed(state) == masks[-back]
            assert same, (
                f"{subject.entry.name}: rollback({back}) leads to another state than before."
            )
            state.replay(tokens[-back:])


def check_replay_rebuilds_the_state(subject: Subject) -> None:
    """After preemption or a crash the state is made anew from the tokens."""
    for constraint, _ in _served(subject):
        grammar = subject.target(_VOCABULARY).compile(constraint)
        tokens = _walk(grammar.start(), random.Random(2))
        followed = grammar.start()
        rebuilt = grammar.start()
        for token in tokens[: len(tokens) // 2]:
            followed.accept(token)
        assert rebuilt.replay(tokens[: len(tokens) // 2]), (
            f"{subject.entry.name}: replay refuses its own tokens."
        )
        assert _allowed(followed) == _allowed(rebuilt), (
            f"{subject.entry.name}: replay leads elsewhere."
        )


def check_states_are_independent(subject: Subject) -> None:
    """Outputs that share a grammar do not see each other."""
    for constraint, _ in _served(subject):
        grammar = subject.target(_VOCABULARY).compile(constraint)
        first = grammar.start()
        second = grammar.start()
        before = _allowed(second)
        first.accept(_allowed(first)[0])
        assert _allowed(second) == before, f"{subject.entry.name}: one state's token moves another."
        assert grammar.memory_bytes > 0, (
            f"{subject.entry.name}: memory_bytes is {grammar.memory_bytes}."
        )


def check_a_finished_output_takes_end_tokens_only(subject: Subject) -> None:
    """Rows continue for a step or two after their end."""
    constraint = Constraint("choice", '["a", "ab"]')
    state = subject.target(_VOCABULARY).compile(constraint).start()
    assert state.accept(ord("a"))
    assert not state.is_done()
    assert state.accept(_END)
    assert state.is_done(), f"{subject.entry.name}: is_done() is false after the end token."
    assert _allowed(state) == [_END], (
        f"{subject.entry.name}: after the end only end tokens may come."
    )
    assert state.accept(_END)


def check_objects_have_the_properties_their_schema_names(subject: Subject) -> None:
    """And no others, an empty name among them, requested or not."""
    for additional in (True, False):
        constraint = Constraint("json", json.dumps(_OPEN), additional_properties=additional)
        if _refusal(subject, constraint) is not None:
            continue
        grammar = subject.target(_VOCABULARY).compile(constraint)
        assert grammar.start().replay([*b'{"wet":true}', _END]), (
            f"{subject.entry.name}: refuses {_OPEN}."
        )
        for more in (b'"extra":1', b'"":1'):
            took = grammar.start().replay([*b'{"wet":true,', *more, *b"}"])
            assert not took, (
                f"{subject.entry.name}: {_OPEN} does not name the property of {more.decode()}."
            )


def check_broken_constraints_are_refused(subject: Subject) -> None:
    """At the edge, with the field."""
    for constraint in _BROKEN:
        field = f"structured_outputs.{constraint.kind}"
        refusal = _refusal(subject, constraint)
        assert refusal is not None, f"{subject.entry.name}: check lets {constraint} through."
        assert refusal.field == field, (
            f"{subject.entry.name}: the refusal names {refusal.field!r}, not {field!r}."
        )


def _refusal(subject: Subject, constraint: Constraint) -> InvalidRequest | None:
    try:
        subject.target.check(constraint)
    except InvalidRequest as error:
        return error
    return None


def _served(subject: Subject) -> Iterator[tuple[Constraint, Callable[[str], Any]]]:
    """Yield the examples that the backend takes."""
    taken = 0
    for constraint, matches in _EXAMPLES:
        if _refusal(subject, constraint) is None:
            taken += 1
            yield constraint, matches
    assert taken, f"{subject.entry.name}: refuses a plain schema, a plain regex and a choice."


def _allowed(state: Any) -> list[int]:
    mask = np.full(-(-_NUM_TOKENS // 32), -1, dtype=np.int32)
    state.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:_NUM_TOKENS]
    return [int(token) for token in np.flatnonzero(bits)]


def _walk(state: Any, choose: random.Random) -> list[int]:
    """Return an output drawn from the masks; it ends when it may, or after some hundred tokens."""
    tokens: list[int] = []
    while len(tokens) < _MAX_TOKENS:
        allowed = _allowed(state)
        assert allowed, f"after {len(tokens)} tokens nothing may come, not even the end."
        printable = [t for t in allowed if t == _END or _VOCABULARY.tokens[t].isascii()]
        token = (
            _END
            if _END in allowed and choose.random() < 0.5
            else choose.choice(printable or allowed)
        )
        assert state.accept(token), f"token {token} is in the mask, but refused."
        tokens.append(token)
        if token == _END:
            break
    return tokens
