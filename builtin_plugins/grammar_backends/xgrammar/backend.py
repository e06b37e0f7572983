"""Grammar backend that compiles constraints with xgrammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xgrammar

from builtin_plugins.grammar_backends.contract import Constraint, Vocabulary
from builtin_plugins.grammar_backends.xgrammar.schema import (
    structural_tag,
    token_ids,
    unserved,
    unserved_in_tag,
    unserved_regex,
)
from core.api import InvalidRequest

MAX_THREADS: Final = 1
"""Threads of one compilation: more would escape the CPU budget and compete with the model."""
_NO_TEXT: Final = b"\xff"
"""First byte of names of tokens without text: the library cannot match empty tokens by id."""
_ANY_OBJECT: Final = '{"type": "object", "additionalProperties": true}'


Mask = npt.NDArray[np.int32]


class XGrammar:
    """Compiles constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        info = xgrammar.TokenizerInfo(
            [token or _NO_TEXT + str(i).encode() for i, token in enumerate(vocabulary.tokens)],
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.end_ids),
            add_prefix_space=False,
        )
        self._compiler = xgrammar.GrammarCompiler(
            info, max_threads=MAX_THREADS, cache_enabled=False
        )
        self._ends = frozenset(vocabulary.end_ids)
        self._without_text = (
            frozenset(i for i, token in enumerate(vocabulary.tokens) if not token) - self._ends
        )
        self._num_words = -(-len(vocabulary.tokens) // 32)

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Parse the constraint without a vocabulary, which takes milliseconds."""
        field = f"structured_outputs.{constraint.kind}"
        if constraint.whitespace_pattern is not None:
            raise InvalidRequest(
                "structured_outputs.whitespace_pattern", "is not supported by xgrammar. Remove it."
            )
        read = {
            "json": lambda text: unserved(json.loads(text)),
            "structural_tag": unserved_in_tag,
            "regex": unserved_regex,
        }.get(constraint.kind)
        if read is not None and (what := read(constraint.text)) is not None:
            raise InvalidRequest(
                field, f"xgrammar does not support {what}. Remove it, or use the backend guidance."
            )
        try:
            _grammar(constraint)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidRequest(
                field, f"cannot be parsed by xgrammar: {_error_text(error)}"
            ) from error

    def compile(self, constraint: Constraint) -> Compiled:
        """Compile the grammar and the masks of its states.

        Raises `InvalidRequest` for one that allows no text.
        """
        compiled = self._compiled(constraint)
        mask = np.zeros_like(self._mask(()))
        compiled.start().fill(mask)
        if not mask.any():
            raise InvalidRequest(f"structured_outputs.{constraint.kind}", "allows no text.")
        return compiled

    def _compiled(self, constraint: Constraint) -> Compiled:
        if constraint.kind != "structural_tag":
            made = self._compiler.compile_grammar(_grammar(constraint))
            return Compiled(made, self._ends, self._mask(self._ends))
        made = self._compiler.compile_structural_tag(_tag(constraint))
        # The library allows any token between tags, also tokens without text.
        hidden = self._without_text - token_ids(constraint.text)
        return Compiled(made, self._ends, self._mask(self._ends), hidden, ~self._mask(hidden))

    def _mask(self, tokens: Iterable[int]) -> Mask:
        mask = np.zeros(self._num_words, dtype=np.uint32)
        for token in tokens:
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask.view(np.int32)


class Compiled:
    """A compiled grammar, shared by its states."""

    def __init__(
        self,
        compiled: Any,
        ends: frozenset[int],
        end_mask: Mask,
        hidden: frozenset[int] = frozenset(),
        visible: Mask | None = None,
    ) -> None:
        """`hidden`: tokens that are never allowed; `visible`: the mask of all others."""
        self.memory_bytes: int = compiled.memory_size_bytes
        self._compiled = compiled
        self._parts = ends, end_mask, hidden, ends | hidden, visible

    def start(self) -> State:
        """Return the initial state."""
        return State(xgrammar.GrammarMatcher(self._compiled), *self._parts)


class State:
    """The position of one output in the grammar."""

    def __init__(
        self,
        matcher: Any,
        ends: frozenset[int],
        end_mask: Mask,
        hidden: frozenset[int],
        special: frozenset[int],
        visible: Mask | None,
    ) -> None:
        self._matcher = matcher
        self._accept = matcher.accept_token
        self._fill = matcher.fill_next_token_bitmask
        self._ends = ends
        self._end_mask = end_mask
        self._hidden = hidden
        self._special = special
        self._visible = visible
        self._num_ends = 0
        """Number of accepted end tokens; the library accepts the first only."""

    def accept(self, token: int) -> bool:
        """Advance by a token; return whether it is allowed."""
        if not self._num_ends and token not in self._special:
            accepted: bool = self._accept(token)
            return accepted
        fits = (
            token in self._ends
            if self._num_ends
            else token not in self._hidden and self._accept(token)
        )
        self._num_ends += fits
        return fits

    def rollback(self, k: int) -> None:
        """Undo the last `k` tokens."""
        free = min(k, max(0, self._num_ends - 1))
        self._num_ends -= free
        if k > free:
            self._num_ends = 0
            self._matcher.rollback(k - free)

    def fill(self, mask: Mask) -> None:
        """Write the mask of the next token."""
        if self._num_ends:
            mask[:] = self._end_mask
        else:
            self._fill(mask)
            if self._visible is not None:
                mask &= self._visible

    def is_done(self) -> bool:
        """Return whether the end was accepted."""
        return self._num_ends > 0

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept several tokens; return whether all are allowed."""
        return all(self.accept(token) for token in tokens)


def _grammar(constraint: Constraint) -> Any:
    make: dict[str, Callable[[], Any]] = {
        "json": lambda: _of_schema(constraint.text, constraint.any_whitespace),
        "json_object": lambda: _of_schema(_ANY_OBJECT, constraint.any_whitespace),
        "regex": lambda: xgrammar.Grammar.from_regex(constraint.text),
        "grammar": lambda: xgrammar.Grammar.from_ebnf(constraint.text),
        "choice": lambda: xgrammar.Grammar.from_ebnf(_choice_rule(json.loads(constraint.text))),
        "structural_tag": lambda: xgrammar.Grammar.from_structural_tag(_tag(constraint)),
    }
    return make[constraint.kind]()


def _tag(constraint: Constraint) -> str:
    return structural_tag(
        constraint.text,
        lambda schema: str(_of_schema(json.dumps(schema), constraint.any_whitespace)),
    )


def _of_schema(schema: str, any_whitespace: bool) -> Any:
    return xgrammar.Grammar.from_json_schema(schema, any_whitespace=any_whitespace)


def _choice_rule(choices: list[str]) -> str:
    return "root ::= " + " | ".join(_literal(choice) for choice in choices)


def _literal(text: str) -> str:
    """Return a text as an EBNF literal."""
    plain = {'"': '\\"', "\\": "\\\\"}
    return (
        '"'
        + "".join(plain.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
        + '"'
    )


def _error_text(error: Exception) -> str:
    """Return the library's message without its source location."""
    text = str(error).strip().partition("] ")[2] or str(error).strip()
    text = text.partition(": ")[2] or text
    return text.removeprefix("Check failed: ")[:500].rstrip(".") + "."
