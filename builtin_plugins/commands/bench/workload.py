"""What is asked of the engine: prompts of known lengths from a seed, or from a file.

Knows no engine and no server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.bench.recorded import READERS as RECORDED
from builtin_plugins.commands.bench.rows import hf
from builtin_plugins.commands.bench.units import Prompt, Units
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse
    from random import Random

READERS: Final = {**RECORDED, "hf": hf}
DATASETS: Final = ("random", "prefix_repetition", *READERS)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    prompt: Prompt
    output_tokens: int
    prompt_tokens: int | None = None
    """None where nobody knows before the engine has said."""


class TokenIds:
    """Token ids of a vocabulary, all equally likely."""

    def __init__(self, vocab_size: int, tokenizer: Any = None) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer

    def draw(self, rng: Random, count: int) -> list[int]:
        """Return random ids."""
        return [rng.randrange(self._vocab_size) for _ in range(count)]

    def prompt(self, units: list[int]) -> list[int]:
        """Return the ids."""
        return units

    def count(self, text: str) -> int:
        """Return the number of tokens."""
        return (
            len(self._tokenizer.encode(text)) if self._tokenizer is not None else len(text.split())
        )


def add_dataset(parser: argparse.ArgumentParser, *, num_prompts: int) -> None:
    """Add what is asked."""
    add = parser.add_argument_group("what is asked").add_argument
    add(
        "--dataset-name",
        choices=DATASETS,
        default="random",
        help="where prompts come from (default: random)",
    )
    add(
        "--dataset-path",
        metavar="FILE",
        help='custom: lines of {"prompt": ...}; hf: a file or a folder; others: their own file',
    )
    add(
        "--num-prompts",
        type=int,
        default=num_prompts,
        metavar="N",
        help=f"requests (default: {num_prompts})",
    )
    for name, default, text in (
        ("input", 128, "tokens of a random prompt"),
        ("output", 128, "tokens to generate for each prompt; -1: as many as the file says"),
    ):
        flags = (f"--{name}-len", f"--random-{name}-len")
        add(
            *flags,
            dest=f"{name}_len",
            type=int,
            default=default,
            metavar="N",
            help=f"{text} (default: {default})",
        )
    add(
        "--random-range-ratio",
        type=float,
        default=0.0,
        metavar="R",
        help="lengths are uniform in [N(1-R), N(1+R)] (default: 0, all equal)",
    )
    add(
        "--random-prefix-len",
        type=int,
        default=0,
        metavar="N",
        help="tokens that all random prompts begin with",
    )
    add(
        "--prefix-repetition-num-prefixes",
        type=int,
        default=10,
        metavar="N",
        help="distinct prefixes (default: 10)",
    )
    add(
        "--prefix-repetition-prefix-len",
        type=int,
        default=256,
        metavar="N",
        help="tokens of each (default: 256)",
    )
    for dataset, name, default, text in (
        ("sonnet", "input", 550, "tokens of a prompt of poem lines"),
        ("sonnet", "prefix", 200, "of these, at the beginning of all"),
        ("sonnet", "output", 150, "tokens to generate for it"),
        ("spec-bench", "output", 256, "tokens to generate for a question of Spec-Bench"),
    ):
        add(
            f"--{dataset}-{name}-len",
            type=int,
            default=default,
            metavar="N",
            help=f"{text} (default: {default})",
        )
    add(
        "--hf-split",
        metavar="NAME",
        help="of a folder of hf (default: train, test or validation, the first there is)",
    )
    add("--hf-subset", metavar="NAME", help="folder within the folder of hf")
    add(
        "--hf-column", metavar="NAME", help="what is asked (default: prompt, question and the like)"
    )
    add(
        "--hf-output-len",
        type=int,
        metavar="N",
        help="tokens to generate for a row of hf; -1: as long as its answer",
    )
    add("--spec-bench-category", metavar="NAME", help="questions of this category only")
    add(
        "--prefix-repetition-suffix-len",
        type=int,
        default=256,
        metavar="N",
        help="tokens after it (default: 256)",
    )


def check_dataset(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for what cannot be asked."""
    needs_file = args.dataset_name in READERS
    if needs_file and args.dataset_path is None:
        raise ConfigError(
            f"--dataset-name {args.dataset_name} needs its file: give --dataset-path."
        )
    if args.dataset_path is not None and not needs_file:
        raise ConfigError(
            f"--dataset-path goes with --dataset-name {', '.join(READERS)}; not "
            f"{args.dataset_name}."
        )
    path = None if args.dataset_path is None else Path(args.dataset_path)
    if path is not None and not (path.is_file() or (args.dataset_name == "hf" and path.is_dir())):
        raise ConfigError(
            f"--dataset-path {args.dataset_path}: there is no such file; nothing is downloaded."
        )
    if args.hf_output_len is not None and args.hf_output_len < 1 and args.hf_output_len != -1:
        raise ConfigError(
            f"--hf-output-len {args.hf_output_len} asks for nothing; use at least 1, or -1."
        )
    if not 0 <= args.random_range_ratio < 1:
        raise ConfigError(
            f"--random-range-ratio {args.random_range_ratio:g} is out of range; use 0 to less than "
            "1."
        )
    if args.output_len < 1 and not (needs_file and args.output_len == -1):
        raise ConfigError(
            f"--output-len {args.output_len} asks for nothing; use at least 1 (-1 only with a "
            "file)."
        )


def make_samples(args: argparse.Namespace, units: Units, rng: Random) -> list[Sample]:
    """Return the requests. Raises `ConfigError` when a file does not hold what it should."""
    if args.dataset_name == "random":
        return list(_random(args, units, rng))
    if args.dataset_name == "prefix_repetition":
        return list(_repeated(args, units, rng))
    samples = [
        Sample(*asked)
        for asked in islice(READERS[args.dataset_name](args, units, rng), args.num_prompts)
    ]
    if not samples:
        raise ConfigError(f"--dataset-path {args.dataset_path} holds no prompt that can be used.")
    # A file that is too small is gone through again, so that the number of requests is the one
    # asked for.
    return [samples[i % len(samples)] for i in range(args.num_prompts)]


def _random(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[Sample]:
    shared = units.draw(rng, args.random_prefix_len)
    for _ in range(args.num_prompts):
        length = _length(args.input_len, args.random_range_ratio, rng)
        output = _length(args.output_len, args.random_range_ratio, rng)
        prompt = units.prompt(shared + units.draw(rng, length))
        yield Sample(prompt, output, len(shared) + length)


def _length(middle: int, ratio: float, rng: Random) -> int:
    return max(1, rng.randint(int(middle * (1 - ratio)), int(middle * (1 + ratio))))


def _repeated(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[Sample]:
    """Every prefix equally often, in random order, each time with another suffix."""
    prefix_len = args.prefix_repetition_prefix_len
    suffix_len = args.prefix_repetition_suffix_len
    prefixes = [units.draw(rng, prefix_len) for _ in range(args.prefix_repetition_num_prefixes)]
    order = [prefixes[i % len(prefixes)] for i in range(args.num_prompts)]
    rng.shuffle(order)
    for prefix in order:
        yield Sample(
            units.prompt(prefix + units.draw(rng, suffix_len)),
            args.output_len,
            prefix_len + suffix_len,
        )
