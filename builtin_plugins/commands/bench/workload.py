"""The requests of a benchmark: random prompts from a seed, or prompts of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.bench import random_images
from builtin_plugins.commands.bench.datasets import READERS as RECORDED
from builtin_plugins.commands.bench.datasets import hf
from builtin_plugins.commands.bench.prompt_source import Prompt, PromptSource
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse
    from random import Random

READERS: Final = {**RECORDED, "hf": hf}
DATASETS: Final = ("random", random_images.NAME, "prefix_repetition", *READERS)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    prompt: Prompt
    output_tokens: int
    prompt_tokens: int | None = None
    """Prompt length; None if only the server knows it."""
    images: tuple[str, ...] = ()
    """URLs of the images after the prompt."""


class TokenIds:
    """Uniformly random token ids of a vocabulary."""

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
    """Add the dataset flags."""
    group = parser.add_argument_group("dataset")
    add = group.add_argument
    add(
        "--dataset-name",
        choices=DATASETS,
        default="random",
        help="source of prompts (default: random)",
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
    _add_random(group)
    random_images.add_arguments(group)
    _add_prefix_repetition(group)
    _add_file_lengths(group)
    _add_hf(group)
    add("--spec-bench-category", metavar="NAME", help="questions of this category only")
    add(
        "--prefix-repetition-suffix-len",
        type=int,
        default=256,
        metavar="N",
        help="tokens after it (default: 256)",
    )


def _add_random(group: argparse._ArgumentGroup) -> None:
    """Add the lengths of random prompts."""
    add = group.add_argument
    for name, default, text in (
        ("input", 128, "tokens of a random prompt"),
        ("output", 128, "tokens to generate for each prompt; -1: the number in the file"),
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
        help="length of the shared prefix of random prompts",
    )


def _add_prefix_repetition(group: argparse._ArgumentGroup) -> None:
    """Add the number and length of repeated prefixes."""
    add = group.add_argument
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


def _add_file_lengths(group: argparse._ArgumentGroup) -> None:
    """Add the lengths of prompts and outputs of the datasets with their own file."""
    for dataset, name, default, text in (
        ("sonnet", "input", 550, "tokens of a prompt of poem lines"),
        ("sonnet", "prefix", 200, "tokens of the shared prefix"),
        ("sonnet", "output", 150, "tokens to generate for a sonnet prompt"),
        ("spec-bench", "output", 256, "tokens to generate for a question of Spec-Bench"),
    ):
        group.add_argument(
            f"--{dataset}-{name}-len",
            type=int,
            default=default,
            metavar="N",
            help=f"{text} (default: {default})",
        )


def _add_hf(group: argparse._ArgumentGroup) -> None:
    """Add the flags of a Hugging Face dataset."""
    add = group.add_argument
    add(
        "--hf-split",
        metavar="NAME",
        help="split of an hf folder (default: train, test or validation)",
    )
    add("--hf-subset", metavar="NAME", help="subfolder of the hf folder")
    add(
        "--hf-column", metavar="NAME", help="prompt column (default: prompt, question and the like)"
    )
    add(
        "--hf-output-len",
        type=int,
        metavar="N",
        help="tokens to generate for a row of hf; -1: the length of its answer",
    )


def check_dataset(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for invalid dataset flags."""
    if args.dataset_name == random_images.NAME:
        random_images.check_arguments(args)
    needs_file = args.dataset_name in READERS
    if needs_file and args.dataset_path is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} needs a file. Set --dataset-path.")
    if args.dataset_path is not None and not needs_file:
        raise ConfigError(
            f"--dataset-path goes with --dataset-name {', '.join(READERS)}; not "
            f"{args.dataset_name}."
        )
    path = None if args.dataset_path is None else Path(args.dataset_path)
    if path is not None and not (path.is_file() or (args.dataset_name == "hf" and path.is_dir())):
        raise ConfigError(
            f"--dataset-path {args.dataset_path}: no such file; datasets are not downloaded."
        )
    if args.hf_output_len is not None and args.hf_output_len < 1 and args.hf_output_len != -1:
        raise ConfigError(
            f"--hf-output-len {args.hf_output_len} is out of range; use at least 1, or -1."
        )
    if not 0 <= args.random_range_ratio < 1:
        raise ConfigError(
            f"--random-range-ratio {args.random_range_ratio:g} is out of range; use 0 to less than "
            "1."
        )
    if args.output_len < 1 and not (needs_file and args.output_len == -1):
        raise ConfigError(
            f"--output-len {args.output_len} is out of range; use at least 1 (-1 only with a file)."
        )


def make_samples(args: argparse.Namespace, units: PromptSource, rng: Random) -> list[Sample]:
    """Return the requests. Raises `ConfigError` for an invalid dataset file."""
    if args.dataset_name == "random":
        return list(_random(args, units, rng))
    if args.dataset_name == random_images.NAME:
        images = random_images.random_images(args, rng)
        # Only the server knows how many tokens an image has.
        return [
            replace(sample, prompt_tokens=None, images=next(images))
            for sample in _random(args, units, rng)
        ]
    if args.dataset_name == "prefix_repetition":
        return list(_repeated(args, units, rng))
    samples = [
        Sample(*row)
        for row in islice(READERS[args.dataset_name](args, units, rng), args.num_prompts)
    ]
    if not samples:
        raise ConfigError(f"--dataset-path {args.dataset_path} has no usable prompt.")
    # A small dataset is repeated, so that the number of requests is as
    # requested.
    return [samples[i % len(samples)] for i in range(args.num_prompts)]


def _random(args: argparse.Namespace, units: PromptSource, rng: Random) -> Iterator[Sample]:
    shared = units.draw(rng, args.random_prefix_len)
    for _ in range(args.num_prompts):
        length = _length(args.input_len, args.random_range_ratio, rng)
        output = _length(args.output_len, args.random_range_ratio, rng)
        prompt = units.prompt(shared + units.draw(rng, length))
        yield Sample(prompt, output, len(shared) + length)


def _length(middle: int, ratio: float, rng: Random) -> int:
    return max(1, rng.randint(int(middle * (1 - ratio)), int(middle * (1 + ratio))))


def _repeated(args: argparse.Namespace, units: PromptSource, rng: Random) -> Iterator[Sample]:
    """Every prefix equally often, in random order, each time with a new suffix."""
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
