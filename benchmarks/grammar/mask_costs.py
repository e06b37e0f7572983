"""Cost of masks along the valid instances of JSONSchemaBench: llguidance's and xgrammar's backend.

Both follow the same tokens of the same schemas in turns; only schemas that both accept count.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grammar.bench_grammar import made_up
from benchmarks.grammar.schema_suites import read_bench
from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from builtin_plugins.grammar_backends.llguidance.backend import LLGuidance
from core.api import InvalidRequest


class Library:
    """xgrammar called directly, as the engine did before: it accepts what it does not hold."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.end_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint) -> Any:
        """Compile a schema."""
        import xgrammar

        made = self._compiler.compile_json_schema(constraint.text, strict_mode=False)
        return lambda: xgrammar.GrammarMatcher(made)


def split(text: bytes, ids: dict[bytes, int], longest: int) -> list[int]:
    """Return the longest tokens from the left."""
    found = []
    while text:
        size = next(n for n in range(min(longest, len(text)), 0, -1) if text[:n] in ids)
        found.append(ids[text[:size]])
        text = text[size:]
    return found


def follow(state: Any, tokens: list[int], mask: Any, *, own: bool) -> list[float] | None:
    """Return the seconds of each mask; None if a token is not allowed."""
    fill = state.fill if own else state.fill_next_token_bitmask
    accept = state.accept if own else state.accept_token
    costs = []
    for token in tokens:
        begun_s = time.thread_time()
        fill(mask)
        costs.append(time.thread_time() - begun_s)
        if not accept(token):
            return None
    return costs


def main() -> None:
    """Print quantiles of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True, help="checkout of jsonschemabench")
    parser.add_argument("--only", default="", help="part of the names of the files")
    parser.add_argument("--stride", type=int, default=50)
    parser.add_argument("--size", type=int, default=32000, help="tokens of the vocabulary")
    args = parser.parse_args()
    vocabulary = made_up(args.size)
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if token}
    longest = max(map(len, ids))
    own = LLGuidance(vocabulary)
    library = Library(vocabulary)
    num_words = -(-args.size // 32)
    masks = np.zeros(num_words, dtype=np.int32), np.zeros((1, num_words), dtype=np.int32)
    costs: tuple[list[float], list[float]] = ([], [])
    compiled: tuple[list[float], list[float]] = ([], [])
    count = 0
    for _, _, schema, tests in [*read_bench(args.bench, args.only)][:: args.stride]:
        valid = [test["data"] for test in tests if test["valid"]]
        constraint = Constraint("json", json.dumps(schema))
        if not valid:
            continue
        begun_s = time.thread_time()
        try:
            own.check(constraint)
            mine = own.compile(constraint)
            middle_s = time.thread_time()
            theirs = library.compile(constraint)
        except (InvalidRequest, RuntimeError, ValueError):
            continue
        compiled[0].append(middle_s - begun_s)
        compiled[1].append(time.thread_time() - middle_s)
        for value in valid:
            tokens = split(json.dumps(value, ensure_ascii=False).encode(), ids, longest)
            pair = (
                follow(mine.start(), tokens, masks[0], own=True),
                follow(theirs(), tokens, masks[1], own=False),
            )
            if pair[0] is not None and pair[1] is not None:
                count += 1
                costs[0].extend(pair[0])
                costs[1].extend(pair[1])
    print(f"{len(compiled[0])} schemas, {count} instances, {len(costs[0])} masks")
    for name, some, spent in zip(("llguidance", "xgrammar"), costs, compiled, strict=True):
        micros = [f"{np.quantile(some, q) * 1e6:.1f}" for q in (0.5, 0.75, 0.99)]
        millis = [f"{np.quantile(spent, q) * 1e3:.1f}" for q in (0.5, 0.99)]
        print(
            f"{name}: mask median {micros[0]} us, 75 % {micros[1]}, 99 % {micros[2]}; mean "
            f"{np.mean(some) * 1e6:.1f} us; compile median {millis[0]} ms, 99 % {millis[1]}"
        )
    print(f"ratio of medians {np.median(costs[0]) / np.median(costs[1]):.2f}")


if __name__ == "__main__":
    main()
