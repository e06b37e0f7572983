"""Rows of a data set as Hugging Face keeps them: a file of JSON, CSV or Parquet, or a folder of
such. Downloads nothing.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.api import ConfigError

if TYPE_CHECKING:
    import argparse
    from random import Random

    from builtin_plugins.commands.bench.units import Units

Row = Mapping[str, Any]

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
"""Columns that are asked where none is named, the first that a row has."""
ANSWERS: Final = ("completion", "answer", "solution", "response", "output", "chosen")
"""Columns whose length is generated with `--hf-output-len -1`."""
SPLITS: Final = ("train", "test", "validation")
"""Looked for in this order where none is named."""
SAID: Final = ("content", "value", "text")
"""Where the turns of a conversation have their text."""


def hf(args: argparse.Namespace, units: Units, rng: Random) -> Iterator[tuple[Any, int, int]]:
    """One text of each row, in random order. Raises `ConfigError` where there is none."""
    found = list(rows(args))
    rng.shuffle(found)
    for row in found:
        prompt = _question(row, args)
        yield prompt, _length(row, args, units), units.count(prompt)


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of a split. Raises `ConfigError` for what is no such data set."""
    for file in _files(Path(args.dataset_path), args.hf_subset, args.hf_split):
        try:
            yield from READERS[file.suffix](file)
        except (
            ValueError,
            OSError,
            csv.Error,
        ) as error:  # what pyarrow raises is a ValueError or an OSError, too
            raise ConfigError(f"--dataset-path {file}: cannot be read: {error}.") from error


def _files(path: Path, subset: str | None, split: str | None) -> list[Path]:
    """Return the files of a split: those with its name in their path, and all where no file is
    named after any split.
    """
    if path.is_file():
        if path.suffix not in READERS:
            raise ConfigError(
                f"--dataset-path {path}: the ending says what is read; there are "
                f"{', '.join(READERS)}."
            )
        return [path]
    inside = path if subset is None else path / subset
    if not inside.is_dir():
        raise ConfigError(f"--hf-subset {subset}: there is no such folder in {path}.")
    files = sorted(
        file
        for file in inside.rglob("*")
        if file.suffix in READERS and not _is_hidden(file, inside)
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
    raise ConfigError(f"--dataset-path {path}: there are no {what}; read are {', '.join(READERS)}.")


def _question(row: Row, args: argparse.Namespace) -> str:
    wanted = QUESTIONS if args.hf_column is None else (args.hf_column,)
    text = next((text for name in wanted if (text := _text(row.get(name)))), None)
    if text is None:
        raise ConfigError(
            f"--dataset-path {args.dataset_path}: a row has no text in {' or '.join(wanted)}; it "
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
    """Return the text of a column, or what its conversation begins with."""
    if isinstance(value, (list, tuple)):
        return _text(value[0]) if value else None
    if isinstance(value, Mapping):
        return next((text for name in SAID if isinstance(text := value.get(name), str)), None)
    return value if isinstance(value, str) and value else None


def _length(row: Row, args: argparse.Namespace, units: Units) -> int:
    wanted = args.output_len if args.hf_output_len is None else args.hf_output_len
    if wanted > 0:
        return int(wanted)
    answer = next((text for name in ANSWERS if (text := _text(row.get(name)))), None)
    if answer is None:
        raise ConfigError(
            f"--dataset-path {args.dataset_path}: a row has no answer ({', '.join(ANSWERS)}) whose "
            "length could be "
            "generated; give --hf-output-len."
        )
    return max(1, units.count(answer))


def _json(file: Path) -> Iterator[Row]:
    """Yield the objects of a list, or of an object's only list, as `{"data": [...]}` has them."""
    text = file.read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except ValueError:
        yield from _json_lines(file)  # some call lines of JSON so
        return
    if isinstance(value, dict):
        lists = [each for each in value.values() if isinstance(each, list)]
        value = lists[0] if len(lists) == 1 else [value]
    yield from (_row(each) for each in value)


def _json_lines(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        yield from (_row(json.loads(line)) for line in lines if line.strip())


def _row(value: Any) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"a row is {value!r:.60}, not an object")
    return value


def _csv(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")


def _parquet(file: Path) -> Iterator[Row]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            f"--dataset-path {file}: needs pyarrow, which is not installed: `pip install "
            "core[bench]`."
        )
    parquet = importlib.import_module("pyarrow.parquet")  # lazy: optional extra
    for batch in parquet.ParquetFile(file).iter_batches():
        yield from batch.to_pylist()


READERS: Final = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
}
