"""Multi-turn conversations in a small KV cache, with and without KV connectors.

Conversations alternate, so that the cache has evicted each one before its next turn. Reports per
connector: whether the tokens are unchanged, the share of reusable tokens that were reused, the
median time to first token of later turns, and the slowdown of decode steps while blocks move
(prefill steps excluded). Takes ten minutes on two cores, mostly without a connector.

Run: python -m benchmarks.kv.bench_conversations [--model FOLDER] [--conversations N] [--turns N]
[--held N] [--says N] [--answers N] [--steps N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.make_model import write_model
from core import LLM, SamplingParams

BLOCK: Final = 16
ROWS: Final = 4
"""Number of decoding rows while blocks move."""
GIB: Final = 1 << 30
FOUND = 0.95
FIRST = 0.35
STEPS = 1.05
"""Minimum share of tokens, and maximum ratios of times."""


@dataclass
class Run:
    """Results of one engine."""

    tokens: list[list[int]] = field(default_factory=list)
    found: int = 0
    reusable: int = 0
    first_token_s: list[float] = field(default_factory=list)
    """Times to first token of later turns in seconds."""
    quiet_s: list[float] = field(default_factory=list)
    moving_s: list[float] = field(default_factory=list)
    """Times of decode-only steps in seconds, without and with moving blocks."""


def user_text(conversation: int, turn: int, count: int) -> list[int]:
    """Return the user text of a turn, equal in every run."""
    return [
        7 + (conversation * 7919 + turn * 104729 + at * at * 31 + at) % 1000 for at in range(count)
    ]


def converse(llm: LLM, args: argparse.Namespace) -> Run:
    """Run all turns of all conversations."""
    run = Run()
    texts = [list[int]() for _ in range(args.conversations)]
    params = SamplingParams(
        temperature=0, max_tokens=args.answers, ignore_eos=True, detokenize=False
    )
    for turn in range(args.turns):
        for number, text in enumerate(texts):
            known = len(text)
            text += user_text(number, turn, args.says)
            (output,) = llm.generate([text], params, use_tqdm=False)
            if turn:
                # The last token of an output is not computed before the next turn.
                run.reusable += (known - 1) // BLOCK * BLOCK
                run.found += output.num_cached_tokens or 0
                times: Any = output.metrics
                run.first_token_s.append(times.first_token_s - times.arrival_s)
            run.tokens.append(list(output.outputs[0].token_ids))
            text += run.tokens[-1]
    return run


def decode_during_transfers(llm: LLM, run: Run, args: argparse.Namespace, first: int) -> None:
    """Measure decode steps while conversations from `first` on return and leave."""
    half = next(
        (
            m.__wrapped__.__self__
            for name, m in llm.core.scheduler._extensions._planned
            if name == "kv_connectors"
        ),
        None,
    )
    long = SamplingParams(temperature=0, max_tokens=args.steps, ignore_eos=True, detokenize=False)
    short = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    moved = False

    def observe(stats: Any) -> None:
        if stats.computed_tokens == ROWS:
            (run.moving_s if moved else run.quiet_s).append(stats.step_s)

    for row in range(ROWS):
        llm.add_request(f"row {row}", user_text(10_000 + row, 0, BLOCK), long)
    llm.core.observe = observe
    for step in range(args.steps - 4):
        if step % 12 == 11 and half is not None:
            back = (first + step // 12) % args.conversations
            llm.add_request(
                f"back {step}",
                user_text(back, 0, args.says) + run.tokens[back] + user_text(back, 1, args.says),
                short,
            )
        moved = half is not None and len(half._in_flight) > 0
        llm.step()
    while llm.has_unfinished_requests():
        llm.step()


def main() -> None:
    """Run every engine and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, help="default: random weights in the shape of Qwen3-0.6B"
    )
    parser.add_argument("--dtype", default="bfloat16")
    for name, count in (
        ("conversations", 50),
        ("turns", 8),
        ("held", 5),
        ("says", 62),
        ("answers", 2),
        ("steps", 240),
        ("rounds", 6),
    ):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--connectors", nargs="*", default=["offload", "disk"])
    args = parser.parse_args()
    length = args.turns * (args.says + args.answers)
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or Path(folder) / "model"
        if args.model is None:
            write_model(model)
        extras = {
            "offload": {"cpu_bytes_to_use": 8 * GIB},
            "disk": {"folder": f"{folder}/blocks", "max_bytes": 8 * GIB},
        }
        base: Run | None = None
        for name in ["none", *args.connectors]:
            transfer = (
                {"kv_connector": name, "kv_connector_extra_config": extras[name]}
                if name in extras
                else None
            )
            with LLM(
                str(model),
                dtype=args.dtype,
                max_model_len=length + BLOCK,
                max_num_seqs=ROWS + 2,
                num_gpu_blocks_override=args.held * -(-length // BLOCK),
                kv_transfer_config=transfer,
                log_level="error",
            ) as llm:
                run = converse(llm, args)
                for turn in range(
                    args.rounds
                ):  # few steps move blocks: one round varies by over 5 %
                    decode_during_transfers(llm, run, args, turn * (args.steps // 12))
            if base is None:
                base = run
                first = 1e3 * statistics.median(run.first_token_s)
                print(f"without: first token of turns that come back {first:.0f} ms", flush=True)
            else:
                print(f"{name}:", *report_lines(run, base), sep="\n  ", flush=True)


def report_lines(run: Run, base: Run) -> Iterator[str]:
    """Yield the report lines of an engine, compared with one without a connector."""
    same = sum(map(list.__eq__, run.tokens, base.tokens))
    found = run.found / run.reusable
    met = verdict(same == len(base.tokens))
    yield f"unchanged outputs       {same} of {len(base.tokens)}; target all: {met}"
    met = verdict(found >= FOUND)
    yield f"reused tokens           {found:.1%} of {run.reusable:,}; target {FOUND:.0%}: {met}"
    first, without = (statistics.median(each.first_token_s) for each in (run, base))
    ratio = first / without
    met = verdict(ratio <= FIRST)
    yield f"first token             {1e3 * first:.0f} ms, {ratio:.3f} times; target {FIRST}: {met}"
    quiet = statistics.median(run.quiet_s)
    moving = statistics.median(run.moving_s or [float("nan")])
    much = f"{1e3 * moving:.1f} ms, {moving / quiet:.3f} times ({len(run.moving_s)} steps)"
    yield f"steps while blocks move {much}; target {STEPS}: {verdict(moving / quiet <= STEPS)}"


def verdict(met: bool) -> str:
    """Return a verdict as a word."""
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
