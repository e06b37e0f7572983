"""Prompts from the files of well-known benchmarks: what each format holds, and which of it is
asked. Knows no server.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.api import ConfigError

if TYPE_CHECKING:
    import argparse
    from random import Random

    from builtin_plugins.commands.bench.units import Units

Asked = tuple[Any, int, int]
"""Prompt, tokens to generate, tokens of the prompt."""
SONNET_HEAD: Final = "Pick as many lines as you can from these poem lines:\n"
FEWEST_TOKENS: Final = 4
"""A prompt or an answer of a conversation with fewer is no use."""
MOST_PROMPT_TOKENS = 1024
MOST_TOKENS = 2048
"""Of a conversation that is used."""


def custom(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[Asked]:
    """Lines of JSON with a `prompt`, and where the file decides its length, `output_tokens`."""
    for number, entry in _json_lines(args.dataset_path):
        prompt = entry.get("prompt")
        wanted = (
            args.output_len if args.output_len > 0 else entry.get("output_tokens", args.output_len)
        )
        if not isinstance(prompt, str) or not isinstance(wanted, int) or wanted < 1:
            raise ConfigError(
                f'{args.dataset_path}, line {number}: needs a text as "prompt", and for -1 its '
                '"output_tokens".'
            )
        yield prompt, wanted, units.count(prompt)


def sharegpt(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[Asked]:
    """First question and the length of its answer, of conversations in random order; too short or
    long ones left out.
    """
    path = Path(args.dataset_path)
    try:
        turns = [entry["conversations"] for entry in json.loads(path.read_text(encoding="utf-8"))]
        pairs = [(t[0]["value"], t[1]["value"]) for t in turns if len(t) > 1]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'{path}: not a list of objects with "conversations".') from error
    for question, answer in rng.sample(pairs, len(pairs)):
        asked = units.count(question)
        answered = units.count(answer)
        fits = FEWEST_TOKENS <= asked <= MOST_PROMPT_TOKENS and asked + answered <= MOST_TOKENS
        if answered >= FEWEST_TOKENS and fits:
            yield question, args.output_len if args.output_len > 0 else answered, asked


def sonnet(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[Asked]:
    """Lines of a poem: first those that all prompts begin with, then random ones, up to the length
    asked for.
    """
    lines = [
        line
        for line in Path(args.dataset_path).read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    if not lines:
        return
    sizes = [max(1, units.count(line)) for line in lines]
    head = units.count(SONNET_HEAD)
    if args.sonnet_input_len < head + args.sonnet_prefix_len:
        raise ConfigError(
            f"--sonnet-input-len {args.sonnet_input_len} has no room for the question ({head} "
            "tokens) and "
            f"--sonnet-prefix-len {args.sonnet_prefix_len}."
        )
    shared = []
    size = head
    place = 0
    while size < head + args.sonnet_prefix_len:
        shared.append(lines[place % len(lines)])
        size = size + sizes[place % len(lines)]
        place = place + 1
    for _ in range(args.num_prompts):
        drawn = list(shared)
        total = size
        while total < args.sonnet_input_len:
            place = rng.randrange(len(lines))
            drawn.append(lines[place])
            total += sizes[place]
        prompt = SONNET_HEAD + "\n".join(drawn)
        yield prompt, args.sonnet_output_len, units.count(prompt)


def burstgpt(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[Asked]:
    """Lengths of what was asked of GPT-4 and answered, with random tokens in their place."""
    path = Path(args.dataset_path)
    with path.open(encoding="utf-8", newline="") as file:
        try:
            rows = [(int(row["Request tokens"]), int(row["Response tokens"])) for row in csv.DictReader(file)
                    if row["Model"] == "GPT-4"]  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f'{path}: needs the columns "Model", "Request tokens" and "Response tokens".'
            ) from error
    used = [(asked, answered) for asked, answered in rows if asked > 0 and answered > 0]
    for asked, answered in rng.sample(used, min(len(used), args.num_prompts)):
        yield units.prompt(units.draw(rng, asked)), answered, asked


def spec_bench(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[Asked]:
    """First turns of questions, all of them or those of one category, in random order."""
    found = []
    for number, entry in _json_lines(args.dataset_path):
        turns = entry.get("turns")
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise ConfigError(
                f'{args.dataset_path}, line {number}: needs a list of texts as "turns".'
            )
        if args.spec_bench_category in (None, entry.get("category")):
            found.append(turns[0])
    rng.shuffle(found)
    for prompt in found:
        yield prompt, args.spec_bench_output_len, units.count(prompt)


def _json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not a JSON object: {error}.") from error
        if not isinstance(entry, dict):
            raise ConfigError(f'{path}, line {number}: not a JSON object with a "prompt".')
        yield number, entry


READERS: Final = {
    "custom": custom,
    "sharegpt": sharegpt,
    "sonnet": sonnet,
    "burstgpt": burstgpt,
    "spec_bench": spec_bench,
}
