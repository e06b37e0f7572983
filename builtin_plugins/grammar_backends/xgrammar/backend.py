"""Constraints compiled by xgrammar. Knows the library; knows no request and no device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xgrammar

from builtin_plugins.grammar_backends.xgrammar.schema import unserved, with_patterns
from core.api import Constraint, InvalidRequest, Vocabulary

MAX_THREADS: Final = 2
"""Of one compilation: the model needs the cores too."""
_ANY_OBJECT: Final = '{"type": "object", "additionalProperties": true}'


class XGrammar:
    """Compiles for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.end_ids),
            add_prefix_space=False,
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=MAX_THREADS, cache_enabled=False)
        self._ends = frozenset(vocabulary.end_ids)
        self._end_mask = np.zeros(-(-len(vocabulary.tokens) // 32), dtype=np.uint32)
        for token in vocabulary.end_ids:
            self._end_mask[token // 32] |= np.uint32(1 << token % 32)

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Read the constraint without a vocabulary, which takes milliseconds."""
        field = f"structured_outputs.{constraint.kind}"
        if constraint.whitespace_pattern is not None:
            raise InvalidRequest("structured_outputs.whitespace_pattern", "is not served by xgrammar; leave it out.")
        if constraint.kind == "json" and (what := unserved(json.loads(constraint.text))) is not None:
            raise InvalidRequest(field, f"xgrammar cannot hold outputs to {what}; leave it out of the schema.")
        try:
            _grammar(constraint)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidRequest(field, f"cannot be read by xgrammar: {_last_words(error)}") from error

    def compile(self, constraint: Constraint) -> Compiled:
        """Prepare the masks of the grammar's states."""
        if constraint.kind == "structural_tag":
            made = self._compiler.compile_structural_tag(_tags(constraint.text))
        else:
            made = self._compiler.compile_grammar(_grammar(constraint))
        return Compiled(made, self._ends, self._end_mask)


class Compiled:
    """A grammar; states share it."""

    def __init__(self, compiled: Any, ends: frozenset[int], end_mask: npt.NDArray[np.uint32]) -> None:
        self.memory_bytes: int = compiled.memory_size_bytes
        self._compiled = compiled
        self._ends = ends
        self._end_mask = end_mask.view(np.int32)

    def start(self) -> State:
        """Return a state at the beginning."""
        return State(xgrammar.GrammarMatcher(self._compiled), self._ends, self._end_mask)


class State:
    """One output's place in the grammar."""

    def __init__(self, matcher: Any, ends: frozenset[int], end_mask: npt.NDArray[np.int32]) -> None:
        self._matcher = matcher
        self._accept, self._fill = matcher.accept_token, matcher.fill_next_token_bitmask
        self._ends = ends
        self._end_mask = end_mask
        self._num_ends = 0
        """End tokens accepted; the library takes the first only."""

    def accept(self, token: int) -> bool:
        """Go on by a token."""
        fits = token in self._ends if self._num_ends else bool(self._accept(token))
        if fits and token in self._ends:
            self._num_ends += 1
        return fits

    def rollback(self, k: int) -> None:
        """Go back by `k` tokens."""
        free = min(k, max(0, self._num_ends - 1))
        self._num_ends -= free
        if k > free:
            self._num_ends = 0
            self._matcher.rollback(k - free)

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Write what may come next."""
        if self._num_ends:
            mask[:] = self._end_mask
        else:
            self._fill(mask)

    def is_done(self) -> bool:
        """Say whether the end was accepted."""
        return self._num_ends > 0

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept the tokens so far."""
        return all(self.accept(token) for token in tokens)


def _grammar(constraint: Constraint) -> Any:
    make: dict[str, Callable[[], Any]] = {
        "json": lambda: _of_schema(constraint.text, constraint.any_whitespace),
        "json_object": lambda: _of_schema(_ANY_OBJECT, constraint.any_whitespace),
        "regex": lambda: xgrammar.Grammar.from_regex(constraint.text),
        "grammar": lambda: xgrammar.Grammar.from_ebnf(constraint.text),
        "choice": lambda: xgrammar.Grammar.from_ebnf(_choice_rule(json.loads(constraint.text))),
        "structural_tag": lambda: xgrammar.Grammar.from_structural_tag(_tags(constraint.text)),
    }
    return make[constraint.kind]()


def _of_schema(schema: str, any_whitespace: bool) -> Any:
    return xgrammar.Grammar.from_json_schema(with_patterns(json.loads(schema)), any_whitespace=any_whitespace)


def _choice_rule(choices: list[str]) -> str:
    return "root ::= " + " | ".join(_literal(choice) for choice in choices)


def _literal(text: str) -> str:
    """Return a text as EBNF writes it."""
    plain = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(plain.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'


def _tags(text: str) -> str:
    """Return a structural tag in today's form; the former one lists `structures` and `triggers`."""
    tag = json.loads(text)
    if "structures" not in tag:
        return text
    tags = [
        {
            "begin": item["begin"],
            "content": {"type": "json_schema", "json_schema": item.get("schema", True)},
            "end": item["end"],
        }
        for item in tag["structures"]
    ]
    found = {"type": "triggered_tags", "triggers": tag.get("triggers", []), "tags": tags}
    return json.dumps({"type": "structural_tag", "format": found})


def _last_words(error: Exception) -> str:
    """Return what the library says, without the place in its sources."""
    text = str(error).strip().partition("] ")[2] or str(error).strip()
    text = text.partition(": ")[2] or text
    return text.removeprefix("Check failed: ")[:500].rstrip(".") + "."
