"""Response templates: a checkpoint's own description of its output syntax.

Format: the page "Response Parsing" of the transformers documentation. Patterns are not run as
regular expressions. Those made of texts, names and gaps are converted to reader steps, which take
linear time; all others are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from builtin_plugins.output_parsers.runtime.reader import OutputReader
from builtin_plugins.output_parsers.runtime.text_stream import Reading
from core.api import ConfigError

_INSTEAD: Final = "Use the model family's own parser instead of `hf`."
_FIELDS: Final = ("thinking", "content", "tool_calls")
_TEMPLATE_KEYS: Final = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_TEXT_KEYS: Final = {
    "open",
    "open_pattern",
    "close",
    "close_pattern",
    "content",
    "content_args",
    "repeats",
    "optional",
    "join",
}
_FIELD_KEYS: Final = {
    "thinking": _TEXT_KEYS,
    "content": _TEXT_KEYS,
    "tool_calls": (_TEXT_KEYS - {"join"}) | {"transform", "transform_each"},
}
_GROUP: Final = re.compile(r"\(\?:(.*)\)", re.DOTALL)
_BRACKET: Final = re.compile(r"(?<!\\)[(\[]")
_OR: Final = re.compile(r"(?<!\\)\|")
_AT_BEGIN: Final = "^"
_AT_END: Final = ("$", r"\Z")
_PIECE: Final = re.compile(
    r"""\(\?P<(?P<name>\w+)>
        (?:(?P<word>(?:\\[wS]|\[(?!\^)(?:\\.|[^\]\\])+\])[+*])
            |\.[+*]\?|\[\^(?:\\.|[^\]\\])+\][+*]\??)
        \)
    |(?P<gap>\.[*+]\?|\[\^(?:\\.|[^\]\\])+\][*+]\??)
    |(?P<space>(?:\\[sn]|[ \n])[*+?]\??|\\s)
    |(?P<text>(?:\\n|\\[^\w\s]|[^\\()\[\]{}.*+?|^$])(?![*+?{]))""",
    re.VERBOSE,
)
_TAG: Final = re.compile(r"<[^<>]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a delimiter after its first text; white space before it is skipped."""

    kind: Literal["text", "word", "gap"]
    """A literal text, a name, or everything up to a text."""
    text: str = ""
    name: str = ""
    """Key of the captured name or gap; empty if it is not captured."""
    exact: bool = True
    """White space around a gap belongs to its value."""


@dataclass(frozen=True, slots=True)
class Delimiter:
    """The start or end of a field: a text and the steps after it."""

    text: str
    steps: tuple[Step, ...] = ()

    def read_rest(self, reader: OutputReader) -> Reading:
        """Return the captured values after the text. Raises `Broken` on a mismatch."""
        named: dict[str, str] = {}
        for step in self.steps:
            if step.kind == "text":
                yield from reader.expect(step.text)
                continue
            if step.kind == "word":
                value = yield from reader.read_name()
            else:
                value, _ = yield from reader.read_until(step.text)
            if step.name:
                named[step.name] = value if step.exact else value.strip()
        return named


@dataclass(frozen=True, slots=True)
class TemplateField:
    """A field of the message: its delimiters and its settings."""

    opens: tuple[Delimiter, ...]
    """Delimiters that start it. Content may have none: it is then all unclaimed text."""
    ends: tuple[Delimiter, ...]
    """Delimiters that end it; empty if only the end of the output does."""
    begun: bool
    """The message starts with this field by default."""
    settings: Mapping[str, Any]
    """The field's settings as the template states them."""

    @property
    def start_texts(self) -> tuple[str, ...]:
        """First texts of the delimiters that start it."""
        return tuple(dict.fromkeys(delimiter.text for delimiter in self.opens))

    @property
    def end_texts(self) -> tuple[str, ...]:
        """First texts of the delimiters that end it."""
        return tuple(dict.fromkeys(delimiter.text for delimiter in self.ends))

    @property
    def later_end_texts(self) -> tuple[str, ...]:
        """The other texts of the delimiters that end it."""
        texts = (step.text for delimiter in self.ends for step in delimiter.steps)
        return tuple(dict.fromkeys(texts))


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """The fields of a message."""

    thinking: TemplateField | None
    content: TemplateField | None
    tool_calls: TemplateField | None
    dropped: tuple[str, ...]
    """Tags of the message start, which the model may repeat before a field."""

    @property
    def around_content(self) -> tuple[str, ...]:
        """Delimiter texts around the content."""
        return (*self.content.start_texts, *self.content.end_texts) if self.content else ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be special tokens: all tags in all delimiters."""
        texts = [*self.dropped]
        for field in filter(None, (self.thinking, self.content, self.tool_calls)):
            steps = [step.text for delimiter in field.opens for step in delimiter.steps]
            texts += [*field.start_texts, *steps, *field.end_texts, *field.later_end_texts]
        return tuple(dict.fromkeys(tag for text in texts for tag in _TAG.findall(text)))


def read_response_template(stated: Mapping[str, Any] | None) -> ResponseTemplate:
    """Return the parsed template. Raises `ConfigError` naming the field."""
    if stated is None:
        raise ConfigError(f"response_template: is missing in tokenizer_config.json. {_INSTEAD}")
    _object("response_template", stated, _TEMPLATE_KEYS)
    if stated.get("version", 1) != 1:
        _refuse("response_template.version", f"got {stated['version']!r}; expected 1")
    _object("response_template.defaults", stated.get("defaults", {}), {"role"})
    fields = _object("response_template.fields", stated.get("fields"), {*_FIELDS})
    thinking, content, tool_calls = (
        _field(f"response_template.fields.{name}", fields[name], name) if name in fields else None
        for name in _FIELDS
    )
    anchors = _texts("response_template.start_anchor", stated.get("start_anchor", ()))
    return ResponseTemplate(
        thinking, content, tool_calls, tuple(text for text in anchors if _TAG.match(text))
    )


def read_pattern(where: str, pattern: object) -> Delimiter:
    """Return the delimiter of a pattern. Raises `ConfigError` beyond texts, names and gaps."""
    if not isinstance(pattern, str):
        _refuse(where, f"got {pattern!r}; expected a string")
    steps: list[Step] = []
    spaced = False
    open_gap = False
    at = 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        if found is None:
            _refuse(where, f"unsupported pattern at {pattern[at : at + 40]!r}")
        at = found.end()
        if found["space"]:
            spaced = True
            continue
        if found["text"]:
            char = {"\\n": "\n"}.get(found["text"], found["text"].removeprefix("\\"))
            last = steps[-1] if steps else None
            goes_on = last is not None and last.kind != "word" and (open_gap or not spaced)
            if last is not None and goes_on:
                steps[-1] = Step(
                    last.kind, last.text + char, last.name, last.exact and not (open_gap and spaced)
                )
            else:
                steps.append(Step("text", char))
            spaced = open_gap = False
            continue
        if open_gap:
            _refuse(where, "got two adjacent gaps; expected a text between them")
        steps.append(
            Step("word" if found["word"] else "gap", "", found["name"] or "", exact=not spaced)
        )
        open_gap = not found["word"]
        spaced = False
    stripped = _without_space(steps)
    if not stripped or stripped[0].kind != "text" or open_gap:
        _refuse(where, f"got {pattern!r}; expected a text first and after each gap")
    return Delimiter(stripped[0].text, tuple(stripped[1:]))


def _without_space(steps: Sequence[Step]) -> list[Step]:
    """Return steps with stripped texts; white space that ends a gap stays."""
    stripped: list[Step] = []
    before = ""
    for step in steps:
        exact = step.exact and not (before[-1:].isspace() or step.text[:1].isspace())
        text = step.text.strip()
        if step.kind == "gap":
            text = text or step.text
        if text or step.kind == "word":
            stripped.append(Step(step.kind, text, step.name, exact))
        before = step.text
    return stripped


def _field(where: str, given: object, name: str) -> TemplateField:
    stated = _object(where, given, _FIELD_KEYS[name])
    for side in ("open", "close"):
        if side in stated and f"{side}_pattern" in stated:
            _refuse(f"{where}.{side}_pattern", f"got both it and `{side}`; expected one of them")
    opens, begun = _delimiters(where, stated, "open")
    ends, _ = _delimiters(where, stated, "close")
    if any(step.kind != "text" for delimiter in ends for step in delimiter.steps):
        _refuse(f"{where}.close_pattern", "got a name or a gap; expected texts only")
    if name == "tool_calls" and begun:
        _refuse(
            f"{where}.open_pattern",
            "matches at the start of the message; expected a text before each call",
        )
    if name != "content" and not opens:
        _refuse(f"{where}.open", "is missing; only `content` may be unclaimed text")
    if name == "thinking" and not ends:
        _refuse(f"{where}.close", "is missing; reasoning needs an end")
    if name != "tool_calls":
        if any(delimiter.steps for delimiter in (*opens, *ends)):
            _refuse(
                where, "got a pattern of several parts; expected one text before and one after it"
            )
        if stated.get("join"):
            _refuse(f"{where}.join", f"got {stated['join']!r}; expected an empty text")
        if stated.get("content", "text") != "text":
            _refuse(f"{where}.content", f"got {stated['content']!r}; expected 'text'")
        _object(f"{where}.content_args", stated.get("content_args", {}), {"strip"})
    return TemplateField(opens, ends, begun, stated)


def _delimiters(
    where: str, stated: Mapping[str, Any], side: str
) -> tuple[tuple[Delimiter, ...], bool]:
    """Return the delimiters of one side, and whether the message start is one of them."""
    pattern = stated.get(f"{side}_pattern")
    if pattern is None:
        return tuple(map(Delimiter, _texts(f"{where}.{side}", stated.get(side, ())))), False
    choices = _choices(pattern) if isinstance(pattern, str) else [pattern]
    read = [choice for choice in choices if choice != _AT_BEGIN and choice not in _AT_END]
    delimiters = tuple(read_pattern(f"{where}.{side}_pattern", choice) for choice in read)
    return delimiters, _AT_BEGIN in choices


def _choices(pattern: str) -> list[str]:
    """Return the alternatives of a pattern, if it has plain ones."""
    group = _GROUP.fullmatch(pattern)
    plain = group[1] if group else pattern
    return [pattern] if _BRACKET.search(plain) else _OR.split(plain)


def _texts(where: str, stated: object) -> tuple[str, ...]:
    texts = (stated,) if isinstance(stated, str) else stated
    if not isinstance(texts, Sequence) or not all(
        isinstance(text, str) and text.strip() for text in texts
    ):
        _refuse(where, f"got {stated!r}; expected a non-empty string or a list of them")
    return tuple(dict.fromkeys(text.strip() for text in texts))


def _object(where: str, stated: object, keys: set[str]) -> Mapping[str, Any]:
    """Return a mapping. Raises `ConfigError` for another type or an unknown key."""
    if not isinstance(stated, Mapping):
        _refuse(where, f"got {stated!r:.100}; expected an object")
    for key in stated:
        if key not in keys:
            _refuse(f"{where}.{key}", "is not supported")
    return stated


def _refuse(where: str, what: str) -> NoReturn:
    raise ConfigError(f"{where}: {what}. {_INSTEAD}")
