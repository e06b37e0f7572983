"""Settings files of models are read as untrusted ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builtin_plugins.model_sources.settings_file import (
    MAX_DEPTH,
    read_settings_json,
    read_settings_object,
    read_settings_text,
)
from core.api import ModelError


def test_object_of_a_good_file_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, {"b": 2}]}', encoding="utf-8-sig")
    assert read_settings_object(path) == {"a": [1, {"b": 2}]}


def test_nested_values_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert read_settings_json(path) is not None
    path.write_text("[" * (MAX_DEPTH + 2) + "1" + "]" * (MAX_DEPTH + 2))
    with pytest.raises(ModelError, match="nested values"):
        read_settings_json(path)


def test_size_limit_counts_bytes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps("é" * 4, ensure_ascii=False), encoding="utf-8")
    assert read_settings_json(path, 10) == "é" * 4
    with pytest.raises(ModelError, match="got more than 9 bytes"):
        read_settings_json(path, 9)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_read(tmp_path: Path, make: object) -> None:
    path = tmp_path / "config.json"
    make(path)  # type: ignore[operator]
    with pytest.raises(ModelError, match="expected a regular file"):
        read_settings_text(path)
