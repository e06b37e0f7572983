"""Response templates: a checkpoint's own words on how its model writes, taken apart into texts to
look for.

Format: the page "Response Parsing" of the transformers documentation. Its patterns are not run on
what a model writes: those that are texts with names and gaps between them are read as such, in
linear time; all others are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from builtin_plugins.output_parsers.runtime.scan import Scan
from builtin_plugins.output_parsers.runtime.source import Waits
from core.errors import ConfigError

_INSTEAD: Final = (
    "Name the model family's own parser instead of one that reads the response template."
)
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
    r"""\(\?P<(?P<name>\w+)>(?:(?P<word>(?:\\[wS]|\[(?!\^)(?:\\.|[^\]\\])+\])[+*])|\.[+*]\?|\[\^(?:\\.|[^\]\\])+\][+*]\??)\)
    |(?P<gap>\.[*+]\?|\[\^(?:\\.|[^\]\\])+\][*+]\??)
    |(?P<space>(?:\\[sn]|[ \n])[*+?]\??|\\s)
    |(?P<text>(?:\\n|\\[^\w\s]|[^\\()\[\]{}.*+?|^$])(?![*+?{]))""",
    re.VERBOSE,
)
_TAG: Final = re.compile(r"<[^<>]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a delimiter goes on with, white space in front of it or not."""

    kind: Literal["text", "word", "gap"]
    """A text, a name, or all up to a text."""
    text: str = ""
    name: str = ""
    """Under which a name, or what stands in a gap, is known; empty: it is left out."""
    exact: bool = True
    """White space around what stands in a gap is its own."""


@dataclass(frozen=True, slots=True)
class Delimiter:
    """What begins or ends something: a text, and what follows it."""

    text: str
    steps: tuple[Step, ...] = ()

    def rest(self, scan: Scan) -> Waits:
        """Return what has names behind the text, which was read.

        Raises `Broken` where it does not go on as it should.
        """
        named: dict[str, str] = {}
        for step in self.steps:
            if step.kind == "text":
                yield from scan.expect(step.text)
                continue
            value = (
                (yield from scan.word())
                if step.kind == "word"
                else (yield from scan.take(step.text))[0]
            )
            if step.name:
                named[step.name] = value if step.exact else value.strip()
        return named


@dataclass(frozen=True, slots=True)
class TemplateField:
    """Where a field of the message stands, and what it says of itself."""

    opens: tuple[Delimiter, ...]
    """What begins it: one of these; of content none, where it is what nothing else claims."""
    ends: tuple[Delimiter, ...]
    """What ends it; none: the end of the output alone."""
    begun: bool
    """The message begins with it where nothing else says so."""
    stated: Mapping[str, Any]

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that begin it, or with which what begins it begins."""
        return tuple(dict.fromkeys(delimiter.text for delimiter in self.opens))

    @property
    def closes(self) -> tuple[str, ...]:
        """The texts that end it, or with which what ends it begins."""
        return tuple(dict.fromkeys(delimiter.text for delimiter in self.ends))

    @property
    def behind(self) -> tuple[str, ...]:
        """The texts with which its ends go on."""
        return tuple(
            dict.fromkeys(step.text for delimiter in self.ends for step in delimiter.steps)
        )


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """The fields of a message."""

    thinking: TemplateField | None
    content: TemplateField | None
    tool_calls: TemplateField | None
    dropped: tuple[str, ...]
    """What may be written again in front of a field: the begin of the message, where it is a tag.
    """

    @property
    def around_content(self) -> tuple[str, ...]:
        """The texts around the answer, which are none of it."""
        return (*self.content.texts, *self.content.closes) if self.content else ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that may be special tokens: all tags in all delimiters."""
        texts = [*self.dropped]
        for field in filter(None, (self.thinking, self.content, self.tool_calls)):
            steps = [step.text for delimiter in field.opens for step in delimiter.steps]
            texts += [*field.texts, *steps, *field.closes, *field.behind]
        return tuple(dict.fromkeys(tag for text in texts for tag in _TAG.findall(text)))


def read_response_template(stated: Mapping[str, Any] | None) -> ResponseTemplate:
    """Return a template that tokenizer_config.json states.

    Raises `ConfigError`, naming the field, for what is not read.
    """
    if stated is None:
        raise ConfigError(
            f"The checkpoint has no `response_template` in its tokenizer_config.json. {_INSTEAD}"
        )
    _object("response_template", stated, _TEMPLATE_KEYS)
    if stated.get("version", 1) != 1:
        _refuse("response_template.version", f"is {stated['version']!r}, and only 1 is read")
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
    """Return a delimiter that a pattern describes.

    Raises `ConfigError` for patterns that are no texts, names and gaps.
    """
    if not isinstance(pattern, str):
        _refuse(where, "must be a text")
    steps: list[Step] = []
    spaced = open_gap = False
    at = 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        if found is None:
            _refuse(where, f"is a pattern that is not read here from {pattern[at : at + 40]!r} on")
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
            _refuse(where, "has two gaps with no text between them")
        steps.append(
            Step("word" if found["word"] else "gap", "", found["name"] or "", exact=not spaced)
        )
        open_gap = not found["word"]
        spaced = False
    kept = _without_space(steps)
    if not kept or kept[0].kind != "text" or open_gap:
        _refuse(where, "must begin with a text, and a gap must end with one")
    return Delimiter(kept[0].text, tuple(kept[1:]))


def _without_space(steps: Sequence[Step]) -> list[Step]:
    """Return steps whose texts have no white space around them, but for a gap that it ends."""
    kept = []
    before = ""
    for step in steps:
        exact = step.exact and not (before[-1:].isspace() or step.text[:1].isspace())
        text = step.text.strip()
        if step.kind == "gap":
            text = text or step.text
        if text or step.kind == "word":
            kept.append(Step(step.kind, text, step.name, exact))
        before = step.text
    return kept


def _field(where: str, given: object, name: str) -> TemplateField:
    stated = _object(where, given, _FIELD_KEYS[name])
    for side in ("open", "close"):
        if side in stated and f"{side}_pattern" in stated:
            _refuse(f"{where}.{side}_pattern", f"stands beside `{side}`, and only one of them may")
    opens, begun = _delimiters(where, stated, "open")
    ends, _ = _delimiters(where, stated, "close")
    if any(step.kind != "text" for delimiter in ends for step in delimiter.steps):
        _refuse(f"{where}.close_pattern", "must be texts alone")
    if name == "tool_calls" and begun:
        _refuse(
            f"{where}.open_pattern",
            "matches where the message begins: calls must have a text in front",
        )
    if name != "content" and not opens:
        _refuse(f"{where}.open", "is missing: only `content` may be what nothing else claims")
    if name == "thinking" and not ends:
        _refuse(f"{where}.close", "is missing: thoughts must end")
    if name != "tool_calls":
        if any(delimiter.steps for delimiter in (*opens, *ends)):
            _refuse(where, "must have one text in front of it, and one behind it")
        if stated.get("join"):
            _refuse(f"{where}.join", f"is {stated['join']!r}, and nothing is put between pieces")
        if stated.get("content", "text") != "text":
            _refuse(f"{where}.content", f"is {stated['content']!r}, and must be 'text'")
        _object(f"{where}.content_args", stated.get("content_args", {}), {"strip"})
    return TemplateField(opens, ends, begun, stated)


def _delimiters(
    where: str, stated: Mapping[str, Any], side: str
) -> tuple[tuple[Delimiter, ...], bool]:
    """Return what stands on one side of a field, and whether the begin of the message may, too."""
    pattern = stated.get(f"{side}_pattern")
    if pattern is None:
        return tuple(map(Delimiter, _texts(f"{where}.{side}", stated.get(side, ())))), False
    choices = _choices(pattern) if isinstance(pattern, str) else [pattern]
    read = [choice for choice in choices if choice != _AT_BEGIN and choice not in _AT_END]
    return tuple(
        read_pattern(f"{where}.{side}_pattern", choice) for choice in read
    ), _AT_BEGIN in choices


def _choices(pattern: str) -> list[str]:
    """Return the patterns of which one is to be there, where those are plain."""
    group = _GROUP.fullmatch(pattern)
    plain = group[1] if group else pattern
    return [pattern] if _BRACKET.search(plain) else _OR.split(plain)


def _texts(where: str, stated: object) -> tuple[str, ...]:
    texts = (stated,) if isinstance(stated, str) else stated
    if not isinstance(texts, Sequence) or not all(
        isinstance(text, str) and text.strip() for text in texts
    ):
        _refuse(where, f"must be a text or several, none of them empty, not {stated!r}")
    return tuple(dict.fromkeys(text.strip() for text in texts))


def _object(where: str, stated: object, keys: set[str]) -> Mapping[str, Any]:
    """Return an object. Raises `ConfigError` for what is none, or has other keys than these."""
    if not isinstance(stated, Mapping):
        _refuse(where, "must be an object")
    for key in stated:
        if key not in keys:
            _refuse(f"{where}.{key}", "is not read here")
    return stated


def _refuse(where: str, what: str) -> NoReturn:
    raise ConfigError(f"{where} {what}. {_INSTEAD}")
