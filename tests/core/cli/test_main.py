"""The command line as a whole: exit statuses, errors, help, plugins' commands and options."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import core
from core.cli.main import main, refuse_foreign_core
from core.errors import ConfigError
from tests.timeouts import TIMEOUT_S

PLUGIN = '''
"""A local plugin with a command and options."""
import logging

from core.api import Entry, ModelError, Option, hookimpl


class Shout:
    help = "Shout the volume."
    takes_engine_options = True

    def add_arguments(self, parser):
        parser.add_argument("--fail", choices=["model", "interrupt", "badly"])

    def run(self, context):
        if context.args.fail == "model":
            raise ModelError("the model is gone: bring it back.")
        if context.args.fail == "interrupt":
            raise KeyboardInterrupt
        if context.args.fail == "badly":
            1 / 0
        print("!" * context.config.options["volume"])
        return 3


class Whisper(Shout):
    takes_engine_options = False

    def run(self, context):
        print("quietly", context.args.fail)
        logging.getLogger("core").info("hush")
        return 0


@hookimpl
def engine_commands():
    return [Entry("shout", Shout, "shout"), Entry("whisper", Whisper, "whisper")]


@hookimpl
def engine_options():
    return [Option("volume", int, 1, "How loud.")]
'''


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("ENGINE_CONFIG", "ENGINE_PLUGINS", "ENGINE_LOG_LEVEL", "ENGINE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers = list(root.handlers)
    level = root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("core", "builtin_plugins", "core_kernels"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def loud(tmp_path: Path) -> str:
    (tmp_path / "loud.py").write_text(PLUGIN)
    return "--plugins=./loud.py"


def origins(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[object, str]]:
    printed = json.loads(capsys.readouterr().out)
    return {
        name: (entry["value"], entry["origin"])
        for group in printed.values()
        for name, entry in group.items()
    }


@pytest.mark.parametrize(
    "argv", [["--version"], ["--help"], ["plugins", "list"], ["config"], ["serve", "--help"]]
)
def test_quick_command_imports_no_torch(argv: list[str]) -> None:
    program = (
        "import sys; from core.cli.main import main; status = main(sys.argv[1:]);"
        "sys.exit(status or [m for m in ('torch', 'transformers', 'fastapi', 'numpy') if m in "
        "sys.modules] or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


class TestCommands:
    def test_plugin_command_runs_with_its_option(
        self, loud: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([loud, "shout", "--volume", "4"]) == 3
        assert capsys.readouterr().out == "!!!!\n"

    def test_command_without_engine_options_has_only_its_own_flags(
        self, loud: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["whisper", loud, "--fail", "model"]) == 0
        assert capsys.readouterr().out == "quietly model\n"
        assert main([loud, "whisper", "--volume", "4"]) == 2

    @pytest.mark.parametrize(
        "argv", [("--log-format=json", "whisper"), ("whisper", "--log-format", "json")]
    )
    def test_every_command_accepts_the_logging_flags(
        self, loud: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([loud, *argv]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert lines[-1]["message"] == "hush"

    def test_unknown_command_suggests_a_similar_name(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["confg"]) == 2
        assert "unknown command 'confg'; did you mean 'config'?" in capsys.readouterr().err

    def test_help_of_an_unknown_command_is_an_error(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["transcribe", "--help"]) == 2
        assert "unknown command 'transcribe'; available: bench" in capsys.readouterr().err

    def test_overview_lists_own_and_plugins_commands(
        self, loud: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([loud, "--help"]) == 0
        printed = capsys.readouterr().out
        for name in ("config", "generate", "plugins", "serve", "shout"):
            assert f"\n  {name} " in printed


class TestErrors:
    def test_wrong_setting_is_one_block_and_status_2(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["config", "--max-num-seqs", "0"]) == 2
        captured = capsys.readouterr()
        assert captured.err == "engine: error: --max-num-seqs 0 is too small; use at least 1.\n"
        assert captured.out == ""

    def test_other_error_is_one_block_and_status_1(
        self, loud: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([loud, "shout", "--fail", "model"]) == 1
        error = capsys.readouterr().err
        assert error.endswith("\nengine: error: the model is gone: bring it back.\n")
        assert "Traceback" not in error

    def test_debug_adds_the_traceback(self, loud: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([loud, "--debug", "shout", "--fail", "model"]) == 1
        assert "Traceback" in capsys.readouterr().err

    def test_interrupt_is_130_without_traceback(
        self, loud: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([loud, "shout", "--fail", "interrupt"]) == 130
        assert "Traceback" not in capsys.readouterr().err

    def test_any_other_exception_is_attributed_to_the_plugin(
        self, loud: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([loud, "shout", "--fail", "badly"]) == 1
        error = capsys.readouterr().err
        assert "plugin 'loud'" in error
        assert "ZeroDivisionError" in error
        assert error.endswith("(--debug shows the traceback.)\n")
        assert "Traceback" not in error

    def test_closed_stdout_is_no_error(self, loud: str) -> None:
        arguments = ["shout", "--log-level", "error", "--volume", "1000000"]
        command = [sys.executable, "-m", "core.cli.main", loud, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(1)
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 1

    def test_foreign_core_package_is_rejected_by_path(self, tmp_path: Path) -> None:
        own = Path(main.__code__.co_filename).parents[1]
        (tmp_path / "core").mkdir()
        refuse_foreign_core([str(tmp_path), str(own.parent)], own)
        (tmp_path / "core" / "__init__.py").touch()
        refuse_foreign_core([str(own.parent), str(tmp_path)], own)
        with pytest.raises(ConfigError, match="shadows the engine's own package `core`"):
            refuse_foreign_core(["", str(own.parent)], own)


class TestBrokenPlugin:
    @pytest.fixture
    def broken(self, tmp_path: Path) -> str:
        (tmp_path / "broken.py").write_text("raise RuntimeError('no luck today')\n")
        return "--plugins=./broken.py"

    def test_stops_the_command_and_is_named(
        self, broken: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([broken, "config"]) == 1
        error = capsys.readouterr().err
        assert "broken" in error
        assert "no luck today" in error

    @pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"]])
    def test_help_still_works_and_names_it(
        self, broken: str, argv: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([broken, *argv]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("usage: engine")
        assert "broken" in printed
        assert "no luck today" in printed


class TestConfigCommand:
    def test_flag_beats_environment_beats_file_beats_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("c.toml").write_text(
            'seed = 1\nblock_size = 8\nlog_level = "error"\n[server_http]\nport = 1\n'
        )
        monkeypatch.setenv("ENGINE_LOG_LEVEL", "warning")
        assert main(["config", "--config", "c.toml", "a-model", "--block-size", "4", "--json"]) == 0
        found = origins(capsys)
        assert found["model"] == ("a-model", "argument MODEL")
        assert found["seed"] == (1, "file c.toml, line 1")
        assert found["block_size"] == (4, "flag --block-size")
        assert found["log_level"] == ("warning", "environment ENGINE_LOG_LEVEL")
        assert found["port"] == (1, "file c.toml, line 5, [server_http]")
        assert found["dtype"] == ("auto", "default")

    def test_environment_may_select_the_file(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("c.yaml").write_text("seed: 5\n")
        monkeypatch.setenv("ENGINE_CONFIG", "c.yaml")
        assert main(["config", "--json"]) == 0
        assert origins(capsys)["seed"] == (5, "file c.yaml, line 1")

    def test_file_may_select_plugins_and_set_their_options(
        self, loud: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("c.toml").write_text('volume = 2\n[plugins]\nplugins = ["./loud.py"]\n')
        assert main(["--config", "c.toml", "shout"]) == 3
        assert capsys.readouterr().out == "!!\n"

    def test_toml_output_round_trips(self, loud: str, capsys: pytest.CaptureFixture[str]) -> None:
        flags = ["--hf-overrides.a.b", "[1, 2.5]", "--volume", "7"]
        flags += ["--served-model-name", 'with "quotes"', "é"]
        assert main([loud, "config", "a-model", *flags, "--toml"]) == 0
        Path("copy.toml").write_text(capsys.readouterr().out)
        assert main(["--config", "copy.toml", "config", "--json"]) == 0
        copied = {name: value for name, (value, _) in origins(capsys).items()}
        assert main([loud, "config", "a-model", *flags, "--json"]) == 0
        assert copied == {name: value for name, (value, _) in origins(capsys).items()}

    def test_secrets_are_not_printed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("ENGINE_API_KEY", "open-sesame")
        for form in ([], ["--json"], ["--toml"]):
            assert main(["config", "--hf-token", "hf_secret", *form]) == 0
            printed = capsys.readouterr().out
            assert "open-sesame" not in printed
            assert "hf_secret" not in printed

    def test_text_output_has_a_line_per_value(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "--block-size", "4"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["--block-size", "4", "flag", "--block-size"] in lines
        assert ["--max-model-len", "-", "default"] in lines

    def test_reference_page_covers_plugin_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "--reference"]) == 0
        printed = capsys.readouterr().out
        assert "## `scheduler`" in printed
        assert "## Plugin `server_http`" in printed

    def test_runs_without_any_plugin(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--plugins", "none", "config", "--block-size", "4", "--json"]) == 0
        assert origins(capsys)["block_size"] == (4, "flag --block-size")

    def test_planned_flag_is_rejected(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "--enable-dbo"]) == 2
        assert capsys.readouterr().err == (
            "engine: error: --enable-dbo: Micro-batching (dual batch overlap): not part of this "
            "version. Remove it.\n"
        )


def test_planned_options_do_not_exist_in_builtins() -> None:
    """A planned option that a builtin contributes is dead code."""
    from builtin_plugins.features.unsupported_flags.flags import MISSING, NOT_NEEDED
    from core.plugin import load_plan, make_plan

    given = {
        option.name for plugin, option in load_plan(make_plan()).options() if not option.refuse
    }
    tables = (*MISSING.values(), *NOT_NEEDED.values())
    assert given.isdisjoint(name for options in tables for name in options)


def test_examining_command_runs_with_broken_plugins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("shaky.py").write_text("import no_such_module\n")
    assert main(["--plugins", "./shaky.py", "doctor", "--json"]) == 1
    failed = [
        f["text"] for f in json.loads(capsys.readouterr().out)["findings"] if f["status"] == "fail"
    ]
    assert any("shaky" in text and "no_such_module" in text for text in failed)
    assert main(["--plugins", "./shaky.py", "config"]) == 1
    assert "shaky" in capsys.readouterr().err


def test_python_m_core_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "core", "--version"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert core.__version__ in done.stdout
