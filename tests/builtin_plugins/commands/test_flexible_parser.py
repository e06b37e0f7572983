"""Command lines of Python scripts: spellings, files, and objects key by key."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from builtin_plugins.commands.api import FlexibleArgumentParser
from core import EngineArgs


def parser() -> FlexibleArgumentParser:
    made = FlexibleArgumentParser(prog="script")
    made.add_argument("--max-len", type=int, default=1)
    made.add_argument("--own_name", default="o")
    made.add_argument("--names", nargs="+", action="extend", default=None)
    made.add_argument("--loud", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--hf-overrides", type=json.loads, default=None)
    made.add_argument("--needed", required=True)
    made.add_argument("text", nargs="?")
    return made


def parse(*argv: str) -> argparse.Namespace:
    return parser().parse_args(argv)


@pytest.mark.parametrize("spelling", ["--max_len 7", "--max-len 7", "--max_len=7"])
def test_dashes_and_underscores_are_alike(spelling: str) -> None:
    assert parse("--needed", "n", *spelling.split()).max_len == 7
    assert parse("--needed", "n", "--own-name", "a_b").own_name == "a_b"


def test_keys_of_an_object_are_joined() -> None:
    argv = ["--hf_overrides.rope.factor", "2", "--hf-overrides.rope.type=yarn"]
    found = parse("--needed", "n", *argv, "--hf-overrides.on", "true", "text")
    assert found.hf_overrides == {"rope": {"factor": 2, "type": "yarn"}, "on": True}
    assert found.text == "text"


@pytest.mark.parametrize("name", ["flags.yaml", "flags.toml"])
def test_file_sets_flags_and_the_command_line_overrides_them(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    keys = {
        ".yaml": "max-len: 7\nown_name: f\nnames: [a, b]\nneeded: n\nloud: false\n"
        "hf-overrides: {deep: true}\n",
        ".toml": 'max-len = 7\nown_name = "f"\nnames = ["a", "b"]\nneeded = "n"\n'
        "[more]\nloud = false\n[hf-overrides]\ndeep = true\n",
    }
    file.write_text(keys[file.suffix])
    found = parse("text", "--config", str(file))
    assert vars(found) == {
        "max_len": 7,
        "own_name": "f",
        "names": ["a", "b"],
        "loud": False,
        "hf_overrides": {"deep": True},
        "needed": "n",
        "text": "text",
    }
    again = parse(f"--config={file}", "--max_len", "9", "--names", "c", "--loud")
    assert (again.max_len, again.names, again.loud, again.own_name) == (9, ["c"], True, "f")


@pytest.mark.parametrize(
    ("content", "argv", "message"),
    [
        ("max_lan: 7", (), "unknown key 'max_lan'; did you mean '--max-len'"),
        ("max-len: many", (), "max-len: error: argument --max-len: invalid int value: 'many'"),
        ("- a", (), "must hold keys and values"),
        ("", ("--config", "b.yaml"), "--config: got two files; expected one."),
        ("", ("--hf-overrides.a",), "--hf-overrides.a: got no value; expected one after it."),
    ],
)
def test_fault_is_named(
    content: str,
    argv: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text(content)
    with pytest.raises(SystemExit):
        parse("--needed", "n", "--config", str(file), *argv)
    assert message in capsys.readouterr().err


def test_scripts_own_config_flag_is_not_a_file() -> None:
    made = FlexibleArgumentParser()
    made.add_argument("--config")
    assert made.parse_args(["--config", "nowhere"]).config == "nowhere"


def test_engine_flags_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(
        "model: 'scripted:'\nmax-model-len: 1k\nenable-prefix-caching: false\nplugins: [a]\n"
    )
    made = FlexibleArgumentParser()
    EngineArgs.add_cli_args(made)
    args = EngineArgs.from_cli_args(made.parse_args(["--config", str(file), "--dtype", "float32"]))
    assert (args.model, args.max_model_len, args.plugins) == ("scripted:", 1000, ["a"])
    assert (args.enable_prefix_caching, args.dtype) == (False, "float32")


def test_a_script_that_needs_the_parser_alone_imports_no_torch() -> None:
    script = (
        "import sys; from builtin_plugins.commands.api import FlexibleArgumentParser; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
