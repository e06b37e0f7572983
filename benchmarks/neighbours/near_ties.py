"""Explains differing tokens under preemption: distance of the draw from the token border.

Runs the same seeded requests on the demo model in float32 twice: with a large cache, and with a
small one that preempts all the time. At the first differing token, the distribution is recomputed
in several ways. Prints the distance of the draw from the border between the two tokens, and how far
the border moves between computations: in several batches at once, and token by token. A draw within
the moved border is a near-tie decided by rounding; any other difference is a fault.

Run: python benchmarks/neighbours/near_ties.py [--requests N] [--tokens N] [--blocks N] [--dtype
float32|bfloat16]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import torch

from core import LLM, SamplingParams
from core.frontend.admission import mix_seed
from core.models.ops.sampling import uniform

TEMPERATURE = 0.8
BATCHES = (1, 4, 13)
FACTOR = 10
"""Safety factor: only some of the possible batches are tried."""
LOOKED_AT = 12
LEAST = 1e-7
"""Minimum movement of a border, in units of the last float32 bit."""


@dataclass(frozen=True)
class Answer:
    """One sequence of a request."""

    prompt: tuple[int, ...]
    params: SamplingParams
    index: int
    """Index of the sequence in its request."""
    tokens: tuple[int, ...]


def open_engine(args: argparse.Namespace, blocks: int) -> LLM:
    """Return an engine with a number of blocks."""
    return LLM(
        dtype=args.dtype,
        plugins=args.plugins,
        num_gpu_blocks_override=blocks,
        max_num_seqs=64,
        max_waiting=None,
        max_model_len=512,
        max_logprobs=-1,
        logprobs_mode="raw_logits",
        enable_prefix_caching=False,
        log_level="error",
    )


def answers(llm: LLM, args: argparse.Namespace) -> tuple[list[Answer], int]:
    """Return every sequence of every request, and the number of preemptions."""
    prompts = [
        f"Describe number {31 * i % 97} and about {17 * i % 89}, then greet me."
        for i in range(args.requests)
    ]
    params = [
        SamplingParams(
            temperature=TEMPERATURE, seed=i % 5, n=3, max_tokens=args.tokens, ignore_eos=True
        )
        for i in range(args.requests)
    ]
    before = llm.core.scheduler.num_preemptions
    outputs = llm.generate(prompts, params, use_tqdm=False)
    found = [
        Answer(tuple(output.prompt_token_ids or ()), params[i], j, tuple(sequence.token_ids))
        for i, output in enumerate(outputs)
        for j, sequence in enumerate(output.outputs)
    ]
    return found, llm.core.scheduler.num_preemptions - before


def seed_of(answer: Answer) -> int:
    """Return the seed of a sequence."""
    first = answer.params.seed or 0
    seed = mix_seed(first, answer.index) if answer.index else first
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def read_again(llm: LLM, prefix: tuple[int, ...], size: int) -> torch.Tensor:
    """Return the cumulative probabilities, float64 [vocab], after a prefix in one prefill batch."""
    prompts = [{"prompt_token_ids": list(prefix)}] + [
        {"prompt_token_ids": [(7 * row + token) % 3000 for token in prefix]}
        for row in range(1, size)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
    outputs = llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    return shares(outputs[0].outputs[0], 0)


def generate_again(llm: LLM, answer: Answer, at: int) -> torch.Tensor | None:
    """Return the same after a prefix generated token by token; None if the tokens differ."""
    params = SamplingParams(
        temperature=TEMPERATURE,
        seed=answer.params.seed,
        n=3,
        max_tokens=at + 1,
        ignore_eos=True,
        logprobs=-1,
    )
    prompts = [{"prompt_token_ids": list(answer.prompt)}]
    outputs = llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    sequence = outputs[0].outputs[answer.index]
    return shares(sequence, at) if tuple(sequence.token_ids[:at]) == answer.tokens[:at] else None


def shares(sequence: Any, at: int) -> torch.Tensor:
    """Return the cumulative probabilities at one position."""
    logits = sequence.logprobs[at]
    row = torch.tensor([logits[token].logprob for token in range(len(logits))], dtype=torch.float64)
    return (row / TEMPERATURE).softmax(-1).cumsum(-1)


def judge(llm: LLM, one: Answer, other: Answer) -> bool:
    """Print the first difference; return whether rounding explains it."""
    at = next(i for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)) if a != b)
    low, high = sorted((one.tokens[at], other.tokens[at]))
    prefix = one.prompt + one.tokens[:at]
    drawn = float(uniform(torch.tensor([seed_of(one)]), torch.tensor([len(prefix)]))[0])
    ways = [read_again(llm, prefix, size) for size in BATCHES]
    generated = generate_again(llm, one, at)
    ways += [] if generated is None else [generated]
    # No token in between was drawn: the draw lies between the end of the lower one
    # and of the last one below the higher, as far as they move.
    ends = [float(way[token]) for way in ways for token in (low, high - 1)]
    moves = max(
        max(float(way[t]) for way in ways) - min(float(way[t]) for way in ways)
        for t in (low, high - 1)
    )
    distance = max(0.0, min(ends) - drawn, drawn - max(ends))
    print(
        f"token {at}: {low} or {high}; drawn {drawn:.9f}, their border {min(ends):.9f} to "
        f"{max(ends):.9f}, which rounding "
        f"moves by {moves:.1e}: the draw is {distance:.1e} outside of it"
    )
    return distance <= FACTOR * max(moves, LEAST)


def odds(llm: LLM, found: list[Answer]) -> float:
    """Return the probability that a draw falls within a moved border: the mean over prefixes.

    Compares a prefix generated token by token with one computed at once, as after a preemption.
    """
    shares_moved = []
    for answer in found[:: max(1, len(found) // LOOKED_AT)]:
        at = len(answer.tokens) // 2
        generated = generate_again(llm, answer, at)
        if generated is not None:
            read = read_again(llm, answer.prompt + answer.tokens[:at], 2)
            shares_moved.append(float((generated - read).abs().sum()))
    return sum(shares_moved) / max(1, len(shares_moved))


def main() -> int:
    """Compare and print; return 1 for an unexplained difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument(
        "--plugins", nargs="*", default=[], help="as for serve: no:NAME leaves kernels out"
    )
    parser.add_argument("--max-differences", type=int, default=10, help="differences to examine")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    with open_engine(args, 4096) as roomy:
        usual, _ = answers(roomy, args)
        with open_engine(args, args.blocks) as tight:
            pressed, preemptions = answers(tight, args)
        pairs = [
            (one, other)
            for one, other in zip(usual, pressed, strict=True)
            if one.tokens != other.tokens
        ]
        print(
            f"{len(usual)} sequences, {preemptions} preemptions: {len(pairs)} differ ({args.dtype})"
        )
        likely = odds(roomy, usual)
        draws = sum(len(answer.tokens) for answer in usual)
        print(
            f"of {draws} draws, {likely:.1e} each fall where rounding moves a border: "
            f"{likely * draws:.2g} are expected to"
        )
        explained = [judge(roomy, one, other) for one, other in pairs[: args.max_differences]]
    return int(not all(explained))


if __name__ == "__main__":
    sys.exit(main())
