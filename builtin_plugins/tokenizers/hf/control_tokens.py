"""Control tokens of a tokenizer, and conversations in which only the template's own are read.

A control token spelled in a message must stay text, while everything else keeps the ids of the
whole text: merges cross the borders of messages. So the text is first tokenized as usual. If that
finds control tokens that the template did not write, it is tokenized by a second tokenizer, in
which control tokens have secret spellings; only the template's are respelled in the text.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import tokenizers

from builtin_plugins.tokenizers.hf.library import encode_ids, encode_texts
from core.api.serving import RenderedText

_RESERVED: Final = re.compile(r"<[|\uff5c].+[|\uff5c]>")
"""Spelling of turn markers that some checkpoints do not mark special."""
_MARKER: Final = re.compile(r"<(/?)(\w[\w.:/ -]*)>|\[/?[A-Z][A-Z_]*\]|<[|\uff5c].+[|\uff5c]>")
"""Spelling of a marker, unless it is an HTML tag."""
_HTML: Final = frozenset(
    [
        "a",
        "abbr",
        "article",
        "aside",
        "b",
        "blockquote",
        "body",
        "br",
        "button",
        "caption",
        "cite",
        "code",
        "col",
        "dd",
        "del",
        "div",
        "dl",
        "dt",
        "em",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "hr",
        "html",
        "i",
        "img",
        "input",
        "ins",
        "kbd",
        "label",
        "li",
        "link",
        "main",
        "mark",
        "meta",
        "nav",
        "ol",
        "option",
        "p",
        "pre",
        "q",
        "samp",
        "script",
        "section",
        "select",
        "small",
        "span",
        "strike",
        "strong",
        "style",
        "sub",
        "summary",
        "sup",
        "svg",
        "table",
        "tbody",
        "td",
        "textarea",
        "tfoot",
        "th",
        "thead",
        "title",
        "tr",
        "tt",
        "u",
        "ul",
        "var",
    ]
)
"""HTML elements, which some vocabularies hold for web pages."""
_LETTERS: Final = "abcdefghijklmnop"
"""Letters of secret spellings; no normalizer changes them."""

Span = tuple[int, int]


def control_texts(
    added: Iterable[tokenizers.AddedToken], roles: Iterable[str], template: str
) -> dict[str, bool]:
    """Return the texts of control tokens, and whether a model's own text never holds them.

    Of the tokens that are not marked special, those count that the chat template writes or that
    look like markers; others, such as runs of spaces or HTML tags, belong to ordinary text.
    """
    found = {}
    named = set(roles)
    for token in added:
        text = token.content
        reserved = token.special or text in named or bool(_RESERVED.fullmatch(text))
        written = text in template and bool(text.strip()) and not text.isalnum()
        if text and (reserved or written or _is_marker(text)):
            found[text] = reserved
    return found


def _is_marker(text: str) -> bool:
    found = _MARKER.fullmatch(text)
    return found is not None and (found[2] or "").lower() not in _HTML


class ControlTokens:
    """Tokenizes rendered conversations; see the module."""

    def __init__(
        self, inner: tokenizers.Tokenizer, texts: Iterable[str], unknown: str | None
    ) -> None:
        """`unknown` is the text of the token for unknown characters, which any text may have."""
        self._inner = inner
        ids = {text: inner.token_to_id(text) for text in texts}
        self._ids = {text: token for text, token in ids.items() if token is not None}
        self._unknown = unknown if unknown in self._ids else None
        self._counted = frozenset(token for text, token in self._ids.items() if text != unknown)
        self._lock = threading.Lock()

    def encode(self, text: RenderedText) -> list[int]:
        """Return ids; control tokens outside the control spans are read as text."""
        plain = str(text)
        spans = [span for span in text.control_spans if plain[slice(*span)] in self._ids]
        ids = encode_ids(self._inner, plain, False)
        if not self._spells_unknown(plain, spans):
            expected = [self._ids[plain[slice(*span)]] for span in spans]
            counted = self._counted
            if [i for i in ids if i in counted] == [i for i in expected if i in counted]:
                return ids
            if self._within(plain, spans):
                return ids
        with self._lock:  # built once, for the first message that spells a control token
            secret = self._secret
        return secret.encode(plain, spans)

    def _spells_unknown(self, text: str, spans: Sequence[Span]) -> bool:
        if self._unknown is None:
            return False
        own = sum(text[slice(*span)] == self._unknown for span in spans)
        return text.count(self._unknown) > own

    def _within(self, text: str, spans: Sequence[Span]) -> bool:
        """Return whether every control token of a text is the template's.

        Some of the template's may be missing: they are only read next to certain characters.
        """
        encoding = encode_texts(self._inner, [text])[0]
        stops = {(start, self._ids[text[start:stop]]): stop for start, stop in spans}
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            # A token may absorb the spaces around it.
            if token in self._counted and not any(
                stops.get((at, token), stop + 1) <= stop for at in range(start, stop)
            ):
                return False
        return True

    @cached_property
    def _secret(self) -> _SecretTokens:
        return _SecretTokens(self._inner, self._ids, self._counted)


class _SecretTokens:
    """A copy of a tokenizer in which control tokens have secret spellings."""

    def __init__(
        self, inner: tokenizers.Tokenizer, ids: Mapping[str, int], counted: frozenset[int]
    ) -> None:
        prefix = "zq" + "".join(_LETTERS[byte % 16] for byte in secrets.token_bytes(20))
        self._names = {text: prefix + _spelt(index) for index, text in enumerate(ids)}
        stated = _respelt(json.loads(inner.to_str()), self._names)
        self._inner = tokenizers.Tokenizer.from_str(json.dumps(stated))
        self._ids = ids
        self._counted = counted
        changed = [t for t, name in self._names.items() if self._inner.token_to_id(name) != ids[t]]
        if changed:
            raise ValueError(f"the ids of {changed[:5]} changed with their spelling")

    def encode(self, text: str, spans: Sequence[Span]) -> list[int]:
        """Return ids, with control tokens at the spans only."""
        ids = encode_ids(self._inner, self._respell(text, spans), False)
        expected = [self._ids[text[slice(*span)]] for span in spans]
        counted = self._counted
        if [i for i in ids if i in counted] == [i for i in expected if i in counted]:
            return ids
        # Those that are only read next to certain characters stay text.
        read = [span for span in spans if self._is_read(text, span)]
        return encode_ids(self._inner, self._respell(text, read), False)

    def _is_read(self, text: str, span: Span) -> bool:
        start, stop = span
        first = max(0, start - 1)
        near = self._respell(text[first : stop + 1], [(start - first, stop - first)])
        return self._ids[text[start:stop]] in encode_ids(self._inner, near, False)

    def _respell(self, text: str, spans: Sequence[Span]) -> str:
        pieces = []
        end = 0
        for start, stop in spans:
            pieces += [text[end:start], self._names[text[start:stop]]]
            end = stop
        return "".join([*pieces, text[end:]])


def _spelt(index: int) -> str:
    """Return a number as letters of a fixed length."""
    return "".join(_LETTERS[(index >> shift) & 15] for shift in (16, 12, 8, 4, 0))


def _respelt(stated: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a tokenizer.json with other spellings of some tokens, and the same ids."""
    model = stated["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): token for text, token in vocab.items()}
    elif isinstance(vocab, list):  # Unigram: pieces with scores
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    for token in stated["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    return stated
