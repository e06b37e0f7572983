"""Which texts a schema's masks allow, byte by byte."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import llguidance

from builtin_plugins.grammar_backends.schema_compiler.compiler import compile_schema

END = 256


class _Bytes:
    bos_token_id = None
    eos_token_id = END
    tokens = [*(bytes((i,)) for i in range(256)), b"\xff<end>"]
    special_token_ids = [END]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@cache
def _tokenizer() -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)


def matches_whole_texts(grammar: str) -> Callable[[bytes], bool]:
    """Return the test whether the masks of a grammar allow a text and its end."""
    first = llguidance.LLMatcher(
        _tokenizer(), str(llguidance.grammar_from("lark", grammar)), log_level=0
    )
    assert not first.is_error(), first.get_error()

    def matches(text: bytes) -> bool:
        matcher = first.deep_copy()
        if matcher.validate_tokens([*text]) != len(text):
            return False
        return bool(matcher.consume_tokens([*text])) and bool(matcher.is_accepting())

    return matches


class ByteMasks:
    """The grammar of one schema. Raises `UnsupportedSchemaError` for an unsupported one."""

    def __init__(self, schema: Any, *, closes: bool = False) -> None:
        self.grammar = compile_schema(schema, closes=closes)
        self._matches = matches_whole_texts(self.grammar)

    def allow(self, text: str) -> bool:
        """Return whether the masks allow a text and its end."""
        return self._matches(text.encode())

    def allow_value(self, value: Any) -> bool:
        """Return whether the masks allow a value with its properties in some order."""
        return any(map(self.allow, notations(value)))


def notations(value: Any) -> Iterator[str]:
    """Yield the texts of a value, with properties in all orders; only for small values."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for texts in itertools.product(*(list(notations(value[name])) for name in names)):
                pairs = zip(names, texts, strict=True)
                members = (
                    f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in pairs
                )
                yield f"{{{', '.join(members)}}}"
    elif isinstance(value, list):
        for texts in itertools.product(*(list(notations(item)) for item in value)):
            yield f"[{', '.join(texts)}]"
    elif isinstance(value, float) and value.is_integer():
        yield str(int(value))
    else:
        yield json.dumps(value, ensure_ascii=False)
