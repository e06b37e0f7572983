"""Files that options name: regular files and pipes, within bounds, and never an endless wait."""

from __future__ import annotations

import json
import os
import threading
import tomllib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from core import option_files
from core.errors import ConfigError
from core.option_files import (
    MAX_DEPTH,
    check_nested,
    check_option_file,
    compose_yaml,
    create_option_file,
    open_option_file,
    parse_nested,
    parse_yaml,
    read_option_bytes,
    read_option_json,
    read_option_text,
)

MERGES = "a: &a0 {k: 1}\n" + "".join(f"b{n}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}\n" for n in range(30))
ALIASES = "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(30))


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_files, "WRITER_S", 0.05)


@pytest.mark.parametrize("read", [open_option_file, check_option_file, read_option_bytes])
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        lambda path: None,
    ],
    ids=["FIFO", "folder", "device", "loop", "missing"],
)
def test_path_without_content_is_refused_with_its_flag(
    tmp_path: Path, make: Callable[[Path], None], read: Callable[[str, str], object]
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(ConfigError, match=f"--flag {path} cannot be read: .*Name another file"):
        read("--flag", str(path))


@pytest.mark.parametrize("name", ["a\0b", "n" * 300, "n" * 100_000, "\udc80\n"])
def test_impossible_name_is_refused(tmp_path: Path, name: str) -> None:
    for use in (open_option_file, check_option_file, create_option_file):
        with pytest.raises(ConfigError, match="--flag ") as caught:
            use("--flag", f"{tmp_path}/none/{name}")
        assert len(str(caught.value)) < 1000
        assert str(caught.value).isprintable()


def test_pipe_with_a_writer_is_read_to_its_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    writer = threading.Thread(
        target=lambda: os.write(writing, b"x" * 100_000) and os.close(writing)
    )
    writer.start()
    try:
        assert read_option_bytes("--flag", f"/dev/fd/{reading}") == b"x" * 100_000
    finally:
        os.close(reading)
        writer.join()


def test_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 10 << 30)
    with pytest.raises(ConfigError, match="got more than 67108864 bytes"):
        read_option_bytes("--flag", path)


def test_small_file_takes_no_memory_of_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)
    tracemalloc.start()
    assert len(read_option_bytes("--flag", path, 2 << 30)) == 3_000_000
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    with pytest.raises(ConfigError, match="got more than 2999999 bytes"):
        read_option_bytes("--flag", path, 2_999_999)


def test_text_has_no_byte_order_mark_and_is_utf8(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("\ufeffé".encode())
    assert read_option_text("--flag", path) == "é"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"--flag .*codec"):
        read_option_text("--flag", path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 500 + "]" * 500, "{", "9" * 5000, ""])
def test_wrong_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"--flag .* cannot be read"):
        read_option_json("--flag", path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        MERGES,
        ALIASES,
        "&a [*a]",
        "a: !!int x",
        "9" * 5000,
        "{a: 1, b",
        "? [1]: 2",
    ],
)
def test_wrong_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="refused"):
        parse_nested(parse_yaml, text, lambda error: ConfigError(f"refused: {error}"))


def test_wrong_toml_is_refused() -> None:
    for text in ("a = " + "[" * 5000, "a = " + "9" * 5000, "a"):
        with pytest.raises(ConfigError, match="refused"):
            parse_nested(tomllib.loads, text, lambda error: ConfigError(f"refused: {error}"))


def test_anchors_and_merged_keys_within_the_bounds_are_read() -> None:
    text = "a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\n"
    assert parse_yaml(text) == {"a": {"x": 1}, "b": {"x": 1, "y": [{"x": 1}, {"x": 1}]}}
    assert parse_yaml("") is None
    assert compose_yaml("a: 1")[1].value[0][0].value == "a"


def test_values_up_to_the_depth_limit_are_accepted() -> None:
    check_nested(json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH))
    with pytest.raises(ValueError, match="nested"):
        check_nested(json.loads("[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1)))


def test_output_is_a_file_or_a_pipe_with_a_reader(tmp_path: Path) -> None:
    with create_option_file("--flag", tmp_path / "new") as file:
        file.write(b"x")
    assert (tmp_path / "new").read_bytes() == b"x"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none" / "file"):
        with pytest.raises(ConfigError, match=r"--flag .* cannot be written"):
            create_option_file("--flag", path)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with create_option_file("--flag", tmp_path / "pipe") as file:
        file.write(b"y")
        file.flush()
        assert os.read(reader, 10) == b"y"
    os.close(reader)
