"""Time to compile a grammar and to fill a mask, in the engine and in the libraries directly.

Both follow the same outputs through the same schemas alternately; ratios are medians of pairs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from builtin_plugins.features.structured_outputs.grammar_row import (
    GrammarRow,
    TokenMasks,
)
from builtin_plugins.features.structured_outputs.reasoning_tracker import (
    NO_REASONING,
    ReasoningTracker,
    TokenTexts,
)
from builtin_plugins.grammar_backends.api import Constraint, Vocabulary, read_vocabulary
from builtin_plugins.grammar_backends.xgrammar.backend import MAX_THREADS, XGrammar
from core.testing.byte_tokenizer import ByteTokenizer

SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
    },
    "text": {
        "type": "object",
        "properties": {"s": {"type": "string"}, "t": {"type": "string"}},
        "required": ["s", "t"],
    },
    "list": {
        "type": "array",
        "items": {"enum": ["red", "green", "blue"]},
        "minItems": 20,
        "maxItems": 40,
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "string"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["v", "next"],
            }
        },
    },
}


class Tokens:
    """The engine's view of a tokenizer.json."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self._inner = Tokenizer.from_file(str(path))
        self.vocab_size = self._inner.get_vocab_size()
        added = self._inner.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, facts in added.items() if facts.special)

    def decode(self, ids: list[int]) -> str:
        return str(self._inner.decode(ids, skip_special_tokens=False))

    def token_text(self, token: int) -> str:
        return self._inner.id_to_token(token) or ""


def made_up(size: int) -> Vocabulary:
    """Return a vocabulary of bytes and random words, as large as a real one and less favourable."""
    choose = random.Random(0)
    words = {bytes((i,)): None for i in range(256)}
    while len(words) < size - 1:
        words[
            "".join(choose.choices('etaoinshrdlu {}[],:"0123', k=choose.randint(2, 7))).encode()
        ] = None
    return Vocabulary((*words, b""), (size - 1,))


def output_of(grammar: Any, vocabulary: Vocabulary, max_tokens: int) -> list[int]:
    """Return the tokens of an output sampled from the masks."""
    state = grammar.start()
    choose = random.Random(1)
    tokens = []
    mask = np.zeros(-(-len(vocabulary.tokens) // 32), dtype=np.int32)
    while len(tokens) < max_tokens and not state.is_done():
        state.fill(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        tokens.append(int(choose.choice(allowed)))
        state.accept(tokens[-1])
    return tokens


def timed(work: Callable[[], Any]) -> float:
    """Return the time of a call in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(
    rounds: int, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> tuple[float, float, float]:
    """Return the median seconds of both sides, and the median of paired ratios."""
    pairs = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    return (
        *(statistics.median(side) for side in zip(*pairs, strict=True)),
        statistics.median(a / b for a, b in pairs),
    )


def follow_row(
    grammar: Any, tokens: list[int], masks: TokenMasks, nothing: ReasoningTracker
) -> None:
    """Run the worker thread's work for one request."""
    row = GrammarRow(grammar.start(), (), nothing, masks)
    for token in tokens:
        row.advance([token])


def follow_xgrammar(compiled: Any, tokens: list[int], mask: Any) -> None:
    """Run the same with the xgrammar library."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled)
    for token in tokens:
        matcher.accept_token(token)
        if not matcher.is_terminated():
            matcher.fill_next_token_bitmask(mask)


def follow_llguidance(matcher: Any, tokens: list[int], mask: Any) -> None:
    """Run the same with the llguidance library."""
    matcher = matcher.deep_copy()
    for token in tokens:
        matcher.consume_token(token)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)


def measure(name: str, vocabulary: Vocabulary, rounds: int) -> None:
    """Print one line for a schema."""
    import xgrammar

    backend = XGrammar(vocabulary)
    constraint = Constraint("json", json.dumps(SCHEMAS[name]), any_whitespace=False)
    info = xgrammar.TokenizerInfo(
        list(vocabulary.tokens),
        xgrammar.VocabType.RAW,
        vocab_size=len(vocabulary.tokens),
        stop_token_ids=list(vocabulary.end_ids),
    )
    direct = xgrammar.GrammarCompiler(info, max_threads=MAX_THREADS, cache_enabled=False)
    schema = json.dumps(SCHEMAS[name])
    compile_ = in_turns(
        min(rounds, 9),
        lambda: backend.compile(constraint),
        lambda: direct.compile_json_schema(schema, any_whitespace=False),
    )
    grammar = backend.compile(constraint)
    compiled = direct.compile_json_schema(schema, any_whitespace=False)
    tokens = output_of(grammar, vocabulary, 200)
    masks = TokenMasks(vocabulary)
    nothing = ReasoningTracker(NO_REASONING, TokenTexts(ByteTokenizer(), vocabulary))
    mask = np.zeros((1, -(-len(vocabulary.tokens) // 32)), dtype=np.int32)
    each = in_turns(
        rounds,
        lambda: follow_row(grammar, tokens, masks, nothing),
        lambda: follow_xgrammar(compiled, tokens, mask),
    )
    micros = [seconds / len(tokens) * 1e6 for seconds in each[:2]]
    print(
        f"{name}: compile {compile_[0] * 1e3:.2f} ms, library {compile_[1] * 1e3:.2f} ms "
        f"({compile_[2]:.2f} times); "
        f"mask {micros[0]:.1f} us, library {micros[1]:.1f} us ({each[2]:.2f} times), {len(tokens)} "
        "tokens"
    )
    measure_llguidance(name, vocabulary, rounds)


def measure_llguidance(name: str, vocabulary: Vocabulary, rounds: int) -> None:
    """Print the times of llguidance, if it is installed."""
    try:
        import llguidance
        from engine_llguidance.backend import LLGuidance, _Tokens
    except ModuleNotFoundError:
        return
    tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Tokens(vocabulary)), n_vocab=len(vocabulary.tokens)
    )
    closed = (
        {**SCHEMAS[name], "additionalProperties": False}
        if "properties" in SCHEMAS[name]
        else SCHEMAS[name]
    )
    options: Any = {"whitespace_flexible": False}
    text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(closed), overrides=options)
    compile_s = statistics.median(
        timed(lambda: llguidance.LLMatcher(tokenizer, text)) for _ in range(min(rounds, 9))
    )
    mask = np.zeros(-(-len(vocabulary.tokens) // 32), dtype=np.int32)
    matcher = llguidance.LLMatcher(tokenizer, text)
    # It uses its own outputs: its JSON layout differs.
    tokens = output_of(
        LLGuidance(vocabulary).compile(Constraint("json", json.dumps(closed), False)),
        vocabulary,
        200,
    )
    each = statistics.median(
        timed(lambda: follow_llguidance(matcher, tokens[:-1], mask)) for _ in range(rounds)
    )
    print(
        f"    llguidance: compile {compile_s * 1e3:.2f} ms, mask "
        f"{each / max(1, len(tokens) - 1) * 1e6:.1f} us"
    )


def main() -> None:
    """Measure all schemas."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="a tokenizer.json; default: a made-up vocabulary"
    )
    parser.add_argument("--size", type=int, default=32000, help="tokens of the made-up vocabulary")
    parser.add_argument("--rounds", type=int, default=51)
    args = parser.parse_args()
    if args.tokenizer is None:
        vocabulary = made_up(args.size)
    else:
        tokens: Any = Tokens(args.tokenizer)
        vocabulary = read_vocabulary(tokens, sorted(tokens.special_ids)[:1])
    print(f"{len(vocabulary.tokens)} tokens, {args.rounds} rounds")
    for name in SCHEMAS:
        measure(name, vocabulary, args.rounds)


if __name__ == "__main__":
    main()
