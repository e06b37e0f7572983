"""Grammar backend on outlines-core automata: slow to compile, then masks are table lookups."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from outlines_core import Index
from outlines_core import Vocabulary as Words
from outlines_core.json_schema import build_regex_from_schema

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary, unsupported_keyword
from core.api import InvalidRequest

_NO_WHITESPACE: Final = ""
_REPEATED: Final = {"star": "*", "plus": "+", "optional": "?"}
Mask = npt.NDArray[np.int32]


class OutlinesCore:
    """Compiles constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        ids: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.tokens):
            if text:
                ids.setdefault(text, []).append(token)
        self._words = Words(vocabulary.end_ids[0], ids)

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Build the regex, and its automaton over single bytes."""
        field = f"structured_outputs.{constraint.kind}"
        if constraint.kind in ("grammar", "json_object"):
            raise InvalidRequest(
                field, "is not supported by outlines-core, which is limited to regular languages."
            )
        if (
            constraint.kind == "json"
            and (key := unsupported_keyword(json.loads(constraint.text))) is not None
        ):
            raise InvalidRequest(
                field, f"outlines-core does not support {key}. Remove it from the schema."
            )
        try:
            if constraint.kind == "structural_tag":
                _check_tag(json.loads(constraint.text))
            Index(_regex(constraint), Words(256, {bytes((i,)): [i] for i in range(256)}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidRequest(
                field, f"is not supported by outlines-core: {str(error)[:500]}"
            ) from error

    def compile(self, constraint: Constraint) -> Compiled:
        """Build the automaton over tokens."""
        return Compiled(Index(_regex(constraint), self._words), self._vocabulary)


class Compiled:
    """An automaton; the masks of its states are built on first use."""

    def __init__(self, index: Any, vocabulary: Vocabulary) -> None:
        self.index = index
        self.end_ids = vocabulary.end_ids
        self._num_words = -(-len(vocabulary.tokens) // 32)
        self._masks: dict[int, Mask] = {}
        self.memory_bytes = 1 + sum(16 * len(moves) for moves in index.get_transitions().values())
        self.end_mask = self._mask_of(self.end_ids)

    def start(self) -> State:
        """Return the initial state."""
        return State(self)

    def mask(self, state: int) -> Mask:
        """Return the mask of a state of the automaton."""
        if state not in self._masks:
            words = set(self.index.get_allowed_tokens(state) or ()) - {*self.end_ids}
            ends = self.end_ids if self.index.is_final_state(state) else ()
            self._masks[state] = self._mask_of([*words, *ends])
        return self._masks[state]

    def _mask_of(self, tokens: Sequence[int]) -> Mask:
        mask = np.zeros(self._num_words, dtype=np.uint32)
        ids = np.asarray(tokens, dtype=np.int64)
        np.bitwise_or.at(mask, ids // 32, np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32)))
        return mask.view(np.int32)


class State:
    """The automaton states of one output."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._states: list[int] = [compiled.index.get_initial_state()]
        self._num_ends = 0

    def accept(self, token: int) -> bool:
        """Advance by a token; return whether it is allowed."""
        compiled = self._compiled
        state = self._states[-1]
        if token in compiled.end_ids:
            fits = self._num_ends > 0 or compiled.index.is_final_state(state)
            self._num_ends += fits
            return bool(fits)
        following = None if self._num_ends else compiled.index.get_next_state(state, token)
        if following is not None:
            self._states.append(following)
        return following is not None

    def rollback(self, k: int) -> None:
        """Undo the last `k` tokens."""
        ends = min(k, self._num_ends)
        self._num_ends -= ends
        if k > ends:
            del self._states[-(k - ends) :]

    def fill(self, mask: Mask) -> None:
        """Write the mask of the next token."""
        mask[:] = (
            self._compiled.end_mask if self._num_ends else self._compiled.mask(self._states[-1])
        )

    def is_done(self) -> bool:
        """Return whether the end was accepted."""
        return self._num_ends > 0

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept several tokens; return whether all are allowed."""
        return all(self.accept(token) for token in tokens)


def _regex(constraint: Constraint) -> str:
    if constraint.kind == "json":
        return _of_schema(constraint.text, constraint)
    if constraint.kind == "structural_tag":
        return _of_tag(json.loads(constraint.text)["format"], constraint)
    if constraint.kind == "choice":
        return "|".join(f"({re.escape(choice)})" for choice in json.loads(constraint.text))
    return constraint.text


def _of_schema(schema: str, constraint: Constraint) -> str:
    whitespace = constraint.whitespace_pattern
    if whitespace is None and not constraint.any_whitespace:
        whitespace = _NO_WHITESPACE
    return str(build_regex_from_schema(schema, whitespace))


def _of_tag(form: Any, constraint: Constraint) -> str:
    """Return the regex of a format in a structural tag.

    The library continues a complete output by single tokens only, so a trailing repetition rarely
    repeats.
    """
    kind = form.get("type")
    if kind == "const_string":
        return re.escape(str(form["value"]))
    if kind == "json_schema" and form.get("style", "json") == "json":
        return f"({_of_schema(json.dumps(form['json_schema']), constraint)})"
    if kind in ("sequence", "or"):
        parts = [_of_tag(element, constraint) for element in form["elements"]]
        return f"({('' if kind == 'sequence' else '|').join(parts)})"
    if kind in _REPEATED:
        return f"({_of_tag(form['content'], constraint)}){_REPEATED[kind]}"
    raise ValueError(f"got {kind!r} in a structural tag, which is not supported; use xgrammar")


def _check_tag(tag: Any) -> None:
    """Raise `ValueError` for an unsupported keyword in a tag's schemas."""
    open_ = [tag]
    while open_:
        part = open_.pop()
        if isinstance(part, list):
            open_ += part
        elif isinstance(part, dict):
            open_ += [inner for key, inner in part.items() if key != "json_schema"]
            if (key := unsupported_keyword(part.get("json_schema"))) is not None:
                raise ValueError(f"it does not support {key}. Remove it from the schema")
