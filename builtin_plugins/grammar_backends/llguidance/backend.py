"""Grammar backend that compiles constraints with llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import llguidance
import numpy as np
import numpy.typing as npt

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from builtin_plugins.grammar_backends.languages.terminals import Terminals, TooLargeError
from builtin_plugins.grammar_backends.llguidance.deep_stack import with_deep_stack
from builtin_plugins.grammar_backends.llguidance.tags import Tags, regex_terminal
from builtin_plugins.grammar_backends.schema_compiler.compiler import SchemaCompiler
from builtin_plugins.grammar_backends.schema_compiler.layout import COMPACT, FLEXIBLE, Layout
from core.api import InvalidRequest

_OPTIONS: Final = '%llguidance {"no_forcing": true}'
"""Masks allow all tokens that continue a valid text, not only those of the shortest encoding."""
_MARK: Final = b"\xff"
"""First byte of names of tokens without text, as the library requires."""
_MAX_GRAMMAR_SIZE: Final = 2_000_000
_MAX_RULES: Final = 100_000
"""Maximum number of rules and definitions: each may use the next, and the library recurses."""
_PANIC: Final = "panic: "
"""Start of the library's message where its numbers do not hold all symbols of a grammar."""
_READING: Final = llguidance.LLParserLimits(
    initial_lexer_fuel=20_000_000, max_grammar_size=_MAX_GRAMMAR_SIZE
)
"""Above the library's defaults; the CPU and memory of each grammar process are bounded too."""
_FOLLOWING: Final = llguidance.LLParserLimits(
    initial_lexer_fuel=1 << 60,
    step_lexer_fuel=1 << 60,
    max_items_in_row=1_000_000,
    step_max_items=100_000_000,
    max_grammar_size=_MAX_GRAMMAR_SIZE,
)
"""The budgets of CPU time and memory bound a grammar that passed the check. These limits would end
outputs in the middle, or forbid valid tokens: without masks in between, as in a replay, lexer fuel
is not refilled."""


class LLGuidance:
    """Compiles constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary)), n_vocab=len(vocabulary.tokens)
        )
        self._ends = vocabulary.end_ids
        self._end_mask = np.zeros(-(-len(vocabulary.tokens) // 32), dtype=np.uint32)
        for token in vocabulary.end_ids:
            self._end_mask[token // 32] |= np.uint32(1 << token % 32)

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Compile the constraint to a grammar, and let the library read it."""
        field = f"structured_outputs.{constraint.kind}"
        try:
            grammar = _grammar(constraint)
            message = with_deep_stack(
                lambda: llguidance.LLMatcher.validate_grammar(grammar.text, limits=_READING),
                grammar.num_rules,
            )
        except TooLargeError:
            message = "is too complex"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            message = str(error) or type(error).__name__
        if message:
            raise InvalidRequest(field, _refusal(message, is_whole=True))

    def compile(self, constraint: Constraint) -> Compiled:
        """Compile the grammar. Raises `InvalidRequest` if the library cannot follow it."""
        try:
            grammar = _grammar(constraint)
            return with_deep_stack(
                lambda: Compiled(grammar.text, self._tokenizer, self._ends, self._end_mask),
                grammar.num_rules,
            )
        except ValueError as error:
            field = f"structured_outputs.{constraint.kind}"
            raise InvalidRequest(field, _refusal(str(error))) from error


def _refusal(message: str, *, is_whole: bool = False) -> str:
    """Return the text of a refusal; `is_whole`: with all lines, not only the first."""
    if message.startswith(_PANIC):
        message = "is too large"
    text = message.strip() if is_whole else message.partition("\n")[0]
    return f"cannot be held: {text[:500].rstrip('.')}."


class Compiled:
    """A compiled grammar; its states are copies of the initial one."""

    def __init__(
        self, grammar: str, tokenizer: Any, ends: tuple[int, ...], end_mask: npt.NDArray[np.uint32]
    ) -> None:
        self.memory_bytes = 64 * len(grammar) + (1 << 16)
        self._first = llguidance.LLMatcher(tokenizer, grammar, limits=_FOLLOWING)
        if self._first.is_error():
            raise ValueError(self._first.get_error())
        self._check_first_steps(~end_mask)
        self._ends = ends
        self._end_mask = end_mask.view(np.int32)

    def _check_first_steps(self, texts: npt.NDArray[np.uint32]) -> None:
        """Raise `ValueError` for a grammar that the library cannot follow for two tokens.

        It finds a grammar too complex only when it computes the masks. `texts`: the mask of all
        tokens but ends.
        """
        probe = self._first.deep_copy()
        mask = np.zeros_like(texts)
        for _ in range(2):
            probe.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            words = np.flatnonzero(mask & texts)
            if probe.is_error():
                raise ValueError(probe.get_error())
            if not len(words):
                break
            last = int(words[-1])
            probe.consume_token(32 * last + int(mask[last] & texts[last]).bit_length() - 1)
        if not len(words) and not probe.is_accepting():
            raise ValueError("allows no text")

    def start(self) -> State:
        """Return the initial state."""
        return State(self._first.deep_copy(), self._ends, self._end_mask)


class State:
    """The position of one output. Counts ends itself, since the library ends early."""

    def __init__(
        self, matcher: Any, ends: tuple[int, ...], end_mask: npt.NDArray[np.int32]
    ) -> None:
        self._matcher = matcher
        self._ends = ends
        self._end_mask = end_mask
        self._num_ends = 0
        self._masked: npt.NDArray[np.int32] | None = None
        """Mask at this position, if requested: for forced text it only allows canonical tokens."""

    def accept(self, token: int) -> bool:
        """Advance by a token; return whether it is allowed."""
        if token in self._ends:
            fits = self._num_ends > 0 or bool(self._matcher.is_accepting())
            self._num_ends += fits
            return fits
        if (
            self._num_ends
            or self._matcher.is_stopped()
            or self._matcher.validate_tokens([token]) != 1
        ):
            self._check()
            return False
        if self._masked is not None and not self._masked[token // 32] >> token % 32 & 1:
            return False
        self._masked = None
        is_taken = bool(self._matcher.consume_token(token))
        self._check()
        return is_taken

    def rollback(self, k: int) -> None:
        """Undo the last `k` tokens."""
        ends = min(k, self._num_ends)
        self._num_ends -= ends
        self._masked = None
        if k > ends:
            self._matcher.rollback(k - ends)

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Write the mask of the next token."""
        if self._num_ends or self._matcher.is_stopped():
            mask[:] = self._end_mask
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        mask &= ~self._end_mask
        if self._matcher.is_accepting():
            mask |= self._end_mask
        self._masked = mask.copy()

    def _check(self) -> None:
        """Raise `InvalidRequest` once the library finds the grammar too complex to go on."""
        if self._matcher.is_error():
            raise InvalidRequest("structured_outputs", _refusal(self._matcher.get_error()))

    def is_done(self) -> bool:
        """Return whether the end was accepted."""
        return self._num_ends > 0

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept several tokens; return whether all are allowed."""
        return all(self.accept(token) for token in tokens)


class _Tokens:
    """The vocabulary in the library's interface."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.end_ids[0]
        self.tokens = [
            token or _MARK + f"<{i}>".encode() for i, token in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = [i for i, token in enumerate(vocabulary.tokens) if not token]
        self._ids = {token: i for i, token in reversed([*enumerate(vocabulary.tokens)]) if token}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the longest tokens from the left; bytes without a token are skipped."""
        rest = text if isinstance(text, bytes) else text.encode()
        ids = []
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._ids), 0)
            if size:
                ids.append(self._ids[rest[:size]])
            rest = rest[size or 1 :]
        return ids


class _Grammar(NamedTuple):
    """A grammar in the library's form."""

    text: str
    num_rules: int
    """Upper bound of its rules, terminals and definitions of schemas."""


@lru_cache(maxsize=4)
def _grammar(constraint: Constraint) -> _Grammar:
    """Return the grammar of a constraint; `check` and `compile` share it."""
    own = constraint.kind == "grammar"
    text = constraint.text if own else f"{_OPTIONS}\n{_lark(constraint)}"
    if own and "::=" in text:
        raise ValueError("reads Lark grammars (with `:`), not EBNF with `::=`")
    num_rules = text.count(":" if own else "\n")  # the compiler writes one to each line
    if num_rules > _MAX_RULES:
        raise ValueError(f"has more than {_MAX_RULES} rules")
    return _Grammar(llguidance.grammar_from("grammar" if own else "lark", text), num_rules)


def _lark(constraint: Constraint) -> str:
    if constraint.kind == "regex":
        terminals = Terminals()
        return _start(terminals, regex_terminal(terminals, constraint.text))
    compiler = SchemaCompiler(_layout(constraint), closes=True)
    if constraint.kind == "structural_tag":
        return Tags(compiler).grammar(constraint.text)
    if constraint.kind == "choice":
        terminals = Terminals()
        texts = [terminals.literal(text) for text in json.loads(constraint.text)]
        return _start(terminals, terminals.alt(*texts))
    if constraint.kind == "json_object":
        return compiler.grammar(compiler.add({"type": "object"}))
    return compiler.grammar(compiler.add(json.loads(constraint.text)))


def _start(terminals: Terminals, part: int) -> str:
    return "\n".join([f"start: {terminals.name(part)}", *terminals.lines])


def _layout(constraint: Constraint) -> Layout:
    if constraint.whitespace_pattern is not None:
        blank = f"(?:{constraint.whitespace_pattern})" if constraint.whitespace_pattern else ""
        return Layout(blank, blank)
    return FLEXIBLE if constraint.any_whitespace else COMPACT
