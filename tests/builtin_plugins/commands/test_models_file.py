"""Models of a server on the command line and in `--models-file`: errors name line and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from builtin_plugins.commands.serve.command import Serve
from builtin_plugins.commands.serve.models.models_file import FileModel, ModelsFile
from builtin_plugins.commands.serve.models.settings import (
    ModelSettings,
    PoolSettings,
    child_file,
    read_models,
)
from core.api import ConfigError, Option
from core.cli.main import main
from core.config.fields import FieldTable

TABLE = FieldTable([("server_http", Option("port", int, 8000, "Port."))])
OWN = {name: found for name, found in TABLE.by_name.items() if name != "port"}


def read(folder: Path, text: str) -> list[FileModel]:
    file = folder / "models.yaml"
    file.write_text(text)
    return ModelsFile(str(file), TABLE, OWN).read()


def test_a_model_is_a_text_or_has_flags(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "base: &base\n  model: org/base\n  dtype: float32\nshort: ./short\n"
        "long:\n  <<: *base\n  max-model-len: 1k\n  dtype: bfloat16\n",
    )
    assert [(each.name, dict(each.settings)) for each in found] == [
        ("base", {"model": "org/base", "dtype": "float32"}),
        ("short", {"model": "./short"}),
        ("long", {"model": "org/base", "dtype": "bfloat16", "max_model_len": 1000}),
    ]
    assert found[2].location.endswith("models.yaml, line 5")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no models; expected NAME"),
        ("- a\n- b", "got no models"),
        ("a: b\n\na: c", r"line 3: a: given twice, also in line 1"),
        ("a:\n  model: x\n  model: y", r"line 3: model: given twice"),
        (
            "a:\n  model: x\n  max_model_lem: 3",
            r"line 3: max_model_lem: unknown key.*max_model_len",
        ),
        ("a:\n  model: x\n  port: 3", r"line 3: port: belongs to the server.*--port"),
        ("a:\n  model: x\n  max_model_len: many", r"line 3: max_model_len: got 'many'; expected"),
        ("a:\n  dtype: float32", r"line 1: a.model: missing"),
        ("a: [x]", r"line 1: a: got a list"),
        ("a: 3", r"line 1: a: got 3; expected a model"),
        ("a: ", r"line 1: a: got None; expected a model"),
        ("1: x", r"line 1: got key 1; expected text"),
        ("a: {", "not valid YAML"),
    ],
)
def test_errors_of_a_file_name_line_and_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)models\.yaml.*{message}"):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--models-file .*nowhere\.yaml cannot be read"):
        ModelsFile(str(tmp_path / "nowhere.yaml"), TABLE, OWN).read()


def test_settings_of_a_process_survive_its_file() -> None:
    values = {
        "model": "m",
        "max_model_len": None,
        "plugins": ["no:x"],
        "speculative_config": {"a": 1},
    }
    text = child_file(ModelSettings(("m",), "m", values, None), "/tmp/x.sock")
    expected = {**values, "max_model_len": "None", "uds": "/tmp/x.sock"}
    assert yaml.safe_load(text) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["a", "b", "a"], "a: names two models, also 'a' (command line)"),
        (["a", "b", "--served-model-name", "x"], "--served-model-name: got x; expected none with"),
        (["a", "b", "--data-parallel-multi-port-external-lb"], "-multi-port-external-lb: got true"),
        (["a", "b", "--api-server-count", "2"], "--api-server-count: got 2; expected 1"),
        (["a", "b", "--lora-modules", "n=p"], "n: names two models, also 'a'"),
        (["a", "b", "--disable-frontend-multiprocessing"], "--disable-frontend-multiprocessing:"),
        (["--max-loaded-models", "2"], "MODEL: got none; expected one or more"),
        (["a", "b", "--max-loaded-models", "0"], "--max-loaded-models 0 is too small"),
        (["a", "b", "--models-file", "nowhere.yaml"], "--models-file nowhere.yaml cannot be read"),
    ],
)
def test_errors_of_the_command_line_name_the_flag(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_name_of_two_models_of_a_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("x: one\ny:\n  model: two\n  served_model_name: [x]\n")
    assert main(["serve", "--models-file", str(file)]) == 2
    error = capsys.readouterr().err
    assert "line 2: x: names two models, also 'one'" in error
    assert "line 1" in error


def settings_of(monkeypatch: pytest.MonkeyPatch, *flags: str) -> PoolSettings | None:
    """Return the models of `engine serve` with these flags."""
    found: list[PoolSettings | None] = []

    def run(self: Serve, context: Any) -> int:
        found.append(read_models(context))
        return 0

    monkeypatch.setattr(Serve, "run", run)
    assert main(["serve", *flags]) == 0
    return found[0]


@pytest.mark.parametrize("flags", [(), ("a",), ("a", "--served-model-name", "x")])
def test_one_model_needs_no_pool(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]) -> None:
    assert settings_of(monkeypatch, *flags) is None


def test_flags_of_the_pool_alone_make_one_of_a_single_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = settings_of(monkeypatch, "a", "--served-model-name", "x", "y", "--model-keep-alive", "9")
    assert pool is not None
    (model,) = pool.models
    assert (model.names, model.model, model.keep_alive_s) == (("x", "y"), "a", 9.0)


def test_flags_of_all_models_reach_each_and_own_ones_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "c:\n  model: org/c\n  dtype: bfloat16\n  served_model_name: [d]\n  model_keep_alive: 0\n"
        '  lora_modules: [n=p, \'{"name": "m", "path": "p"}\']\n'
    )
    monkeypatch.setenv("ENGINE_API_KEY", "secret")
    flags = ["--dtype", "float32", "--port", "1", "--model-keep-alive", "5", "--seed", "3"]
    flags += ["--journal", "run.journal"]
    pool = settings_of(monkeypatch, "a/", "b", "--models-file", str(file), *flags)
    assert pool is not None
    assert [model.names for model in pool.models] == [("a",), ("b",), ("c", "d")]
    assert [model.keep_alive_s for model in pool.models] == [5.0, 5.0, 0.0]
    assert pool.max_loaded == 3
    first, _, last = pool.models
    common = {"seed": 3, "api_key": ["secret"], "journal": "run.journal.a"}
    names = ["a"]
    assert first.values == {**common, "model": "a/", "dtype": "float32", "served_model_name": names}
    assert last.values["dtype"] == "bfloat16"
    assert "port" not in last.values
    assert (last.adapters, last.has_adapters) == (("n", "m"), True)
