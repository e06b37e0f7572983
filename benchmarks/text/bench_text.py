"""Prefix hashing and detokenization compared with minimal baselines, in CPU time.

Prefix: a prompt of 50,000 tokens, 49,000 cached, is hashed and looked up, against a loop of
hashlib. Detokenization: token by token, against the tokenizers library's DecodeStream.

Run: python benchmarks/text/bench_text.py [--rounds N] [--tokenizer TOKENIZER.JSON]
"""

from __future__ import annotations

import argparse
import hashlib
import random
import statistics
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from tokenizers.decoders import DecodeStream

import builtin_plugins.model_sources.demo
from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import read_settings
from core.frontend.text.detokenizer import make_detokenizer
from core.kv import KVManager, plan_layout
from core.model_spec.kv import FullAttention, LayerKV

BLOCK = 16
PROMPT = 50_000
CACHED = 49_000
DEMO = Path(next(iter(builtin_plugins.model_sources.demo.__path__))) / "model" / "tokenizer.json"


def clocked(function: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    started = time.thread_time()
    function()
    return time.thread_time() - started


def compare(
    name: str, ours: Callable[[], object], other: Callable[[], object], rounds: int, per: int
) -> None:
    """Print microseconds per item of both, and the ratio."""
    pairs = [(clocked(ours), clocked(other)) for _ in range(rounds)]
    mine, theirs = (1e6 * statistics.median(side) / per for side in zip(*pairs, strict=True))
    print(f"{name:<34} {mine:>9.3f} {theirs:>9.3f} {mine / theirs:>7.2f}x", flush=True)


def prefix(rounds: int) -> None:
    """Hash and look up a long prompt."""
    rng = random.Random(0)
    tokens = [rng.randrange(1, 150_000) for _ in range(PROMPT)]
    layout = plan_layout(
        [LayerKV("0", FullAttention(8, 128, "bfloat16"))],
        block_size=BLOCK,
        memory_bytes=0,
        num_blocks=2 * PROMPT // BLOCK,
        max_model_len=2 * PROMPT,
        max_num_seqs=4,
    )
    kv = KVManager(layout)
    lease = kv.open_lease()
    kv.admit(lease, kv.find_longest_hit(lease, tokens, PROMPT - 1), 0, CACHED, CACHED, CACHED)
    kv.step_issued(1)
    kv.publish(lease, tokens, CACHED)

    def ours() -> None:
        assert (
            kv.find_longest_hit(kv.open_lease(), tokens, PROMPT - 1).num_tokens
            == CACHED - CACHED % BLOCK
        )

    def bare() -> None:
        data = array("I", tokens).tobytes()
        parent = bytes(32)
        keys = []
        for start in range(0, len(data), 4 * BLOCK):
            parent = hashlib.sha256(parent + data[start : start + 4 * BLOCK]).digest()
            keys.append(parent)

    compare("hash and find, a block", ours, bare, rounds, PROMPT // BLOCK)


def detokenize(path: Path, rounds: int) -> None:
    """Decode a text token by token."""
    tokenizer = FastTokenizer(path, read_settings(path.parent))
    inner = tokenizer._inner
    ids = tokenizer.encode(Path(__file__).read_text(encoding="utf-8"), add_special_tokens=False)

    def ours() -> None:
        spelled = make_detokenizer(tokenizer, [], True)
        for token in ids:
            spelled.append([token])

    def theirs() -> None:
        stream = DecodeStream(skip_special_tokens=True)
        for token in ids:
            stream.step(inner, token)

    compare("detokenize, a token", ours, theirs, rounds, len(ids))


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokenizer", type=Path, default=DEMO)
    args = parser.parse_args()
    print(f"{'microseconds of CPU':<34} {'ours':>9} {'least':>9} {'ratio':>8}")
    prefix(args.rounds)
    detokenize(args.tokenizer, args.rounds)


if __name__ == "__main__":
    main()
