"""Tells the control tokens that a chat template writes from those that messages spell.

In the template's own texts, the first character of each control token is replaced by a mark when
the template is compiled. Messages pass through rendering as they are, whatever the template does
to them, and hold no marks: a control token of the prompt is the template's if it begins with one.

Marks are lone surrogates: no valid text holds them, and every length stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jinja2 import nodes

from builtin_plugins.chat_renderers.surrogates import map_texts
from core.api.serving import RenderedText

_ROLES: Final = (
    *("assistant", "bot", "context", "developer", "environment", "function", "gpt", "human"),
    *("ipython", "model", "observation", "system", "tool", "tool_response", "user"),
)
"""Roles around which templates build control tokens: `<|{{ message.role }}|>`."""
_FIRST_MARK: Final = 0xDC00
_MARK: Final = re.compile("[\udc00-\udfff]")
_SEARCHES: Final = frozenset(
    {"endswith", "find", "index", "lstrip", "partition", "removeprefix", "removesuffix", "replace"}
    | {"rpartition", "rsplit", "rstrip", "split", "startswith", "strip"}
)
"""Methods and filters with which templates look for markers in a message."""
_ANSWER_FIELDS: Final = ("content", "reasoning", "reasoning_content", "thinking")


class ControlTexts:
    """The control tokens of a tokenizer, and marks for their first and last characters."""

    def __init__(self, reserved: Mapping[str, bool]) -> None:
        """`reserved` are the `control_texts` of a tokenizer."""
        self.reserved = reserved
        ends = dict.fromkeys(character for text in reserved for character in (text[0], text[-1]))
        self.whole = {each: chr(_FIRST_MARK + 2 * i) for i, each in enumerate(ends)}
        """Mark by first character, of a token that is written as a whole."""
        self.built = {each: chr(_FIRST_MARK + 2 * i + 1) for i, each in enumerate(ends)}
        """Mark by first or last character, of a token that is written around a value."""
        self.plain = {
            mark: each for marks in (self.whole, self.built) for each, mark in marks.items()
        }
        self.pattern = any_of(reserved)


class TemplateMarks:
    """The marks of one template."""

    def __init__(self, control: ControlTexts, tree: nodes.Template) -> None:
        """Mark the texts of a parsed template."""
        self._control = control
        sought = set(_sought_texts(tree))
        self._answers = any_of(
            text for text, reserved in control.reserved.items() if not reserved or text in sought
        )
        self._heads: set[str] = set()
        self._tails: set[str] = set()
        self._built: set[str] = set()
        self._read_roles({*_ROLES, *_role_texts(tree)})
        _join_texts(tree)
        for data in tree.find_all(nodes.TemplateData):
            data.data = self._mark_literal(data.data)
        for const in tree.find_all(nodes.Const):
            const.value = map_texts(self._mark_literal, const.value)

    def mark(self, text: str) -> str:
        """Return a text of the template's with its control tokens marked."""
        return self._marked(self._control.pattern, text)

    def mark_answers(self, messages: Sequence[dict[str, Any]]) -> None:
        """Mark what a model writes into its answers, such as `<think>`: templates look for it.

        Control tokens that no answer holds stay text.
        """
        for message in messages:
            if message.get("role") == "assistant":
                for name in _ANSWER_FIELDS:
                    if name in message:
                        message[name] = self._marked_answer(message[name])

    def unmark(self, text: str) -> str:
        """Return a text without marks."""
        plain = self._control.plain
        return _MARK.sub(lambda found: plain.get(found[0], found[0]), text)

    def read(self, prompt: str) -> RenderedText:
        """Return a rendered prompt, and where the template wrote control tokens."""
        text = self.unmark(prompt)
        wholes = set(self._control.whole.values())
        spans: list[tuple[int, int]] = []
        end = 0
        for mark in _MARK.finditer(prompt):
            token = self._control.pattern.match(text, mark.start())
            if token is None or mark.start() < end:
                continue
            if mark[0] in wholes or self._is_built(token[0], prompt[token.end() - 1]):
                end = token.end()
                spans.append((mark.start(), end))
        return RenderedText(text, spans)

    def _is_built(self, token: str, last: str) -> bool:
        """Return whether the template wrote a token around a role: its last character, too."""
        if token not in self._built:
            return False
        return last in self._control.plain or "" in self._tails

    def _read_roles(self, roles: Iterable[str]) -> None:
        """Find the control tokens that hold a role as a word, and their texts around it."""
        words = re.compile(rf"(?:{'|'.join(map(re.escape, roles))})(?!\w)", re.IGNORECASE)
        for text in self._control.reserved:
            for role in words.finditer(text, 1):
                self._built.add(text)
                self._heads.add(text[: role.start()])
                self._tails.add(text[role.end() :])

    def _mark_literal(self, text: str) -> str:
        marked = self.mark(text)
        built = self._control.built
        # A value stands at the ends of a literal, and at the places of a format string.
        for head in self._heads:
            pattern = rf"{re.escape(head)}(?=%s|\{{|\Z)"
            marked = re.sub(pattern, lambda found: built[found[0][0]] + found[0][1:], marked)
        for tail in filter(None, self._tails):
            pattern = rf"(\A|%s|\}}){re.escape(tail)}"
            marked = re.sub(pattern, lambda found: found[0][:-1] + built[found[0][-1]], marked)
        return marked

    def _marked_answer(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._marked(self._answers, value)
        if not isinstance(value, list):
            return value
        return [
            {**part, "text": self._marked(self._answers, part["text"])}
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            else part
            for part in value
        ]

    def _marked(self, pattern: re.Pattern[str], text: str) -> str:
        whole = self._control.whole
        return pattern.sub(lambda found: whole[found[0][0]] + found[0][1:], text)


def _texts_of(value: Any) -> Iterator[str]:
    """Yield all texts of a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts_of(pair)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts_of(each)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the longest text at a position, in time independent of their number."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_branches(tree) if tree else r"(?!)")


def _branches(node: Mapping[str, Any]) -> str:
    """Return the pattern of a prefix tree; an empty key ends a text."""
    parts = []
    for character, child in node.items():
        if not character:
            continue
        run = character
        while len(child) == 1 and "" not in child:
            ((character, child),) = child.items()
            run += character
        parts.append(re.escape(run) + ("" if list(child) == [""] else _branches(child)))
    return f"(?:{'|'.join(parts)}){'?' if '' in node else ''}"


def _join_texts(tree: nodes.Template) -> None:
    """Join neighbouring texts of the output, so that a token of two of them is one text."""
    for output in tree.find_all(nodes.Output):
        joined: list[nodes.Expr] = []
        for node in output.nodes:
            text = _text_of(node)
            before = joined[-1] if joined else None
            if text is None:
                joined.append(node)
            elif isinstance(before, nodes.TemplateData):
                before.data += text
            else:
                joined.append(nodes.TemplateData(text, lineno=node.lineno))
        output.nodes = joined


def _text_of(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.TemplateData):
        return node.data
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return node.value
    return None


def _texts_in(*found: nodes.Node) -> Iterator[str]:
    for node in found:
        for const in (node, *node.find_all(nodes.Const)):
            if isinstance(const, nodes.Const):
                yield from _texts_of(const.value)


def _sought_texts(tree: nodes.Template) -> Iterator[str]:
    """Yield the texts that a template looks for in others."""
    for compared in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compared.ops):
            yield from _texts_in(compared.expr)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _SEARCHES:
            yield from _texts_in(*call.args)
    for each in tree.find_all(nodes.Filter):
        if each.name in _SEARCHES:
            yield from _texts_in(*each.args)


def _role_texts(tree: nodes.Template) -> Iterator[str]:
    """Yield the texts that a template compares with a role."""
    for compared in tree.find_all(nodes.Compare):
        texts = [text for text in _texts_in(compared) if text.isidentifier()]
        if "role" in texts or any(
            isinstance(node, (nodes.Getattr, nodes.Name))
            and "role" in (getattr(node, "attr", None), getattr(node, "name", None))
            for node in compared.find_all((nodes.Getattr, nodes.Name))
        ):
            yield from texts
