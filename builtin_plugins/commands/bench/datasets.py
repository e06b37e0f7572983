"""Benchmark datasets: prompts from public dataset files and from Hugging Face files. No
downloads.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.api import ConfigError
from core.api.config import check_option_file, open_option_file, read_option_text

if TYPE_CHECKING:
    import argparse
    from random import Random

    from builtin_plugins.commands.bench.prompt_source import PromptSource


FLAG: Final = "--dataset-path"
MAX_DATASET_BYTES: Final = 2 << 30
"""Size limit of a dataset that is read whole."""
MAX_LINE_LENGTH: Final = 1 << 24
"""Length limit of a line, in characters."""
DatasetRow = tuple[Any, int, int]
"""Prompt, tokens to generate, tokens of the prompt."""
SONNET_HEAD: Final = "Pick as many lines as you can from these poem lines:\n"
MIN_TOKENS: Final = 4
"""Minimum tokens of a usable prompt or answer."""
MAX_PROMPT_TOKENS = 1024
MAX_TOKENS = 2048
"""Maximum total tokens of a usable conversation."""


def custom(args: argparse.Namespace, units: PromptSource, rng: Random) -> Iterator[DatasetRow]:
    """JSON lines with a `prompt` and, for `--output-len -1`, `output_tokens`."""
    for number, entry in _json_lines(args.dataset_path):
        prompt = entry.get("prompt")
        output_tokens = (
            args.output_len if args.output_len > 0 else entry.get("output_tokens", args.output_len)
        )
        if not isinstance(prompt, str) or not isinstance(output_tokens, int) or output_tokens < 1:
            raise ConfigError(
                f'{args.dataset_path}, line {number}: needs a text as "prompt", and for -1 its '
                '"output_tokens".'
            )
        yield prompt, output_tokens, units.count(prompt)


def sharegpt(args: argparse.Namespace, units: PromptSource, rng: Random) -> Iterator[DatasetRow]:
    """First question and answer length of conversations in random order, without too short or long
    ones.
    """
    path = args.dataset_path
    text = read_option_text(FLAG, path, MAX_DATASET_BYTES)
    try:
        turns = [entry["conversations"] for entry in json.loads(text)]
        pairs = [(t[0]["value"], t[1]["value"]) for t in turns if len(t) > 1]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f'{path}: not a list of objects with "conversations".') from error
    for question, answer in rng.sample(pairs, len(pairs)):
        prompt_tokens = units.count(question)
        answer_tokens = units.count(answer)
        fits = (
            MIN_TOKENS <= prompt_tokens <= MAX_PROMPT_TOKENS
            and prompt_tokens + answer_tokens <= MAX_TOKENS
        )
        if answer_tokens >= MIN_TOKENS and fits:
            yield question, args.output_len if args.output_len > 0 else answer_tokens, prompt_tokens


def sonnet(args: argparse.Namespace, units: PromptSource, rng: Random) -> Iterator[DatasetRow]:
    """Lines of a poem: shared first lines, then random ones, up to the requested length."""
    lines = [
        line
        for line in read_option_text(FLAG, args.dataset_path, MAX_DATASET_BYTES).splitlines()
        if line.strip()
    ]
    if not lines:
        return
    sizes = [max(1, units.count(line)) for line in lines]
    head = units.count(SONNET_HEAD)
    if args.sonnet_input_len < head + args.sonnet_prefix_len:
        raise ConfigError(
            f"--sonnet-input-len {args.sonnet_input_len} is too small for the question ({head} "
            "tokens) and "
            f"--sonnet-prefix-len {args.sonnet_prefix_len}."
        )
    shared = []
    size = head
    index = 0
    while size < head + args.sonnet_prefix_len:
        shared.append(lines[index % len(lines)])
        size = size + sizes[index % len(lines)]
        index = index + 1
    for _ in range(args.num_prompts):
        drawn = list(shared)
        total = size
        while total < args.sonnet_input_len:
            index = rng.randrange(len(lines))
            drawn.append(lines[index])
            total += sizes[index]
        prompt = SONNET_HEAD + "\n".join(drawn)
        yield prompt, args.sonnet_output_len, units.count(prompt)


def burstgpt(args: argparse.Namespace, units: PromptSource, rng: Random) -> Iterator[DatasetRow]:
    """Prompt and answer lengths of GPT-4 requests, with random tokens."""
    path = args.dataset_path
    try:
        rows = [
            (int(row["Request tokens"]), int(row["Response tokens"]))
            for row in csv.DictReader(_text_lines(path))
            if row["Model"] == "GPT-4"
        ]
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ConfigError(
            f'{path}: needs the columns "Model", "Request tokens" and "Response tokens".'
        ) from error
    used = [
        (prompt_tokens, answer_tokens)
        for prompt_tokens, answer_tokens in rows
        if prompt_tokens > 0 and answer_tokens > 0
    ]
    for prompt_tokens, answer_tokens in rng.sample(used, min(len(used), args.num_prompts)):
        yield units.prompt(units.draw(rng, prompt_tokens)), answer_tokens, prompt_tokens


def spec_bench(args: argparse.Namespace, units: PromptSource, rng: Random) -> Iterator[DatasetRow]:
    """First turns of the questions of one or all categories, in random order."""
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


def _text_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a file. Raises `ConfigError` for one that is too long to be held."""
    file = open_option_file(FLAG, path)
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines:
        while line := lines.readline(MAX_LINE_LENGTH):
            if len(line) == MAX_LINE_LENGTH:
                raise ConfigError(
                    f"{FLAG} {path}: got a line of {MAX_LINE_LENGTH} characters or more; expected "
                    "fewer. Correct the file."
                )
            yield line


def _json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_option_text(FLAG, path, MAX_DATASET_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
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


HfRow = Mapping[str, Any]

QUESTIONS: Final = (
    "prompt",
    "question",
    "problem",
    "instruction",
    "turns",
    "conversations",
    "messages",
    "input",
    "text",
)
"""Default prompt columns; the first that a row has is used."""
ANSWERS: Final = ("completion", "answer", "solution", "response", "output", "chosen")
"""Columns that give the output length with `--hf-output-len -1`."""
SPLITS: Final = ("train", "test", "validation")
"""Default splits, in this order."""
TEXT_KEYS: Final = ("content", "value", "text")
"""Text keys of a conversation turn."""


def hf(
    args: argparse.Namespace, units: PromptSource, rng: Random
) -> Iterator[tuple[Any, int, int]]:
    """One text per row, in random order. Raises `ConfigError` for a row without text."""
    found = list(rows(args))
    rng.shuffle(found)
    for row in found:
        prompt = _question(row, args)
        yield prompt, _length(row, args, units), units.count(prompt)


def rows(args: argparse.Namespace) -> Iterator[HfRow]:
    """Yield the rows of a split. Raises `ConfigError` for an unreadable dataset."""
    for file in _files(Path(args.dataset_path), args.hf_subset, args.hf_split):
        try:
            yield from FILE_READERS[file.suffix](file)
        except (
            ValueError,
            OSError,
            RecursionError,
            csv.Error,
        ) as error:  # includes pyarrow's errors
            raise ConfigError(f"--dataset-path {file}: cannot be read: {error}.") from error


def _files(path: Path, subset: str | None, split: str | None) -> list[Path]:
    """Return the files of a split by name, or all files if none is named after a split."""
    if path.is_file():
        if path.suffix not in FILE_READERS:
            raise ConfigError(
                f"--dataset-path {path}: unknown file type; expected one of "
                f"{', '.join(FILE_READERS)}."
            )
        return [path]
    inside = path if subset is None else path / subset
    if not inside.is_dir():
        raise ConfigError(f"--hf-subset {subset}: there is no such folder in {path}.")
    files = sorted(
        file
        for file in inside.rglob("*")
        if file.suffix in FILE_READERS and not _is_hidden(file, inside)
    )
    named = {
        name: [file for file in files if name in file.relative_to(inside).as_posix()]
        for name in SPLITS
    }
    if split is None:
        return next((of_split for of_split in named.values() if of_split), files) or _nothing(
            path, "data files"
        )
    of_split = [file for file in files if split in file.relative_to(inside).as_posix()]
    if not of_split and (any(named.values()) or not files):
        return _nothing(path, f"files with {split!r} in their names (--hf-split)")
    return of_split or files


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _nothing(path: Path, what: str) -> list[Path]:
    raise ConfigError(
        f"--dataset-path {path}: no {what}; expected one of {', '.join(FILE_READERS)}."
    )


def _question(row: HfRow, args: argparse.Namespace) -> str:
    columns = QUESTIONS if args.hf_column is None else (args.hf_column,)
    text = next((text for name in columns if (text := _text(row.get(name)))), None)
    if text is None:
        raise ConfigError(
            f"--dataset-path {args.dataset_path}: a row has no text in {' or '.join(columns)}; it "
            "has the columns "
            f"{', '.join(row)}. Name one with --hf-column."
        )
    more = (
        row.get("input")
        if args.hf_column is None and row.get("instruction") and not row.get("prompt")
        else None
    )
    return f"{text}\n{more}" if isinstance(more, str) and more and more != text else text


def _text(value: Any) -> str | None:
    """Return the text of a column, or of the first turn of its conversation."""
    if isinstance(value, (list, tuple)):
        return _text(value[0]) if value else None
    if isinstance(value, Mapping):
        return next((text for name in TEXT_KEYS if isinstance(text := value.get(name), str)), None)
    return value if isinstance(value, str) and value else None


def _length(row: HfRow, args: argparse.Namespace, units: PromptSource) -> int:
    columns = args.output_len if args.hf_output_len is None else args.hf_output_len
    if columns > 0:
        return int(columns)
    answer = next((text for name in ANSWERS if (text := _text(row.get(name)))), None)
    if answer is None:
        raise ConfigError(
            f"--dataset-path {args.dataset_path}: a row has no answer ({', '.join(ANSWERS)}). "
            "Set --hf-output-len."
        )
    return max(1, units.count(answer))


def _json(file: Path) -> Iterator[HfRow]:
    """Yield the objects of a list, or of an object's only list, such as `{"data": [...]}`."""
    text = read_option_text(FLAG, file, MAX_DATASET_BYTES)
    try:
        value = json.loads(text)
    except ValueError:
        yield from _read_json_lines(file)  # some .json files have JSON lines
        return
    if isinstance(value, dict):
        lists = [each for each in value.values() if isinstance(each, list)]
        value = lists[0] if len(lists) == 1 else [value]
    yield from (_row(each) for each in value)


def _read_json_lines(file: Path) -> Iterator[HfRow]:
    yield from (_row(json.loads(line)) for line in _text_lines(file) if line.strip())


def _row(value: Any) -> HfRow:
    if not isinstance(value, dict):
        raise ValueError(f"a row is {value!r:.60}, not an object")
    return value


def _csv(file: Path) -> Iterator[HfRow]:
    delimiter = "\t" if file.suffix == ".tsv" else ","
    yield from csv.DictReader(_text_lines(file), delimiter=delimiter)


def _parquet(file: Path) -> Iterator[HfRow]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            f"--dataset-path {file}: needs pyarrow, which is not installed: `pip install "
            "core[bench]`."
        )
    check_option_file(FLAG, file)
    parquet = importlib.import_module("pyarrow.parquet")  # lazy: optional extra
    for batch in parquet.ParquetFile(file).iter_batches():
        yield from batch.to_pylist()


FILE_READERS: Final = {
    ".json": _json,
    ".jsonl": _read_json_lines,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
}
