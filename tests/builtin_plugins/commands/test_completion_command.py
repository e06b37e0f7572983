"""`engine completion` prints scripts that complete commands, flags and values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from core.cli.main import main

SHELLS = ("bash", "zsh", "fish")
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
$(complete -p engine | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the script of each shell."""
    folder = tmp_path_factory.mktemp("scripts")
    with pytest.MonkeyPatch.context() as patch:
        for shell in SHELLS:
            with (folder / shell).open("w") as file:
                patch.setattr("sys.stdout", file)
                assert main(["completion", shell]) == 0
    return folder


def completions(scripts: Path, *words: str) -> set[str]:
    """Return what bash offers for a command line."""
    done = subprocess.run(
        ["bash", "-c", ASK, "ask", str(scripts / "bash"), "engine", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ser",), {"serve"}),
        (("plugins", "expl"), {"explain"}),
        (("bench", "thr"), {"throughput"}),
        (("serve", "--max-model-l"), {"--max-model-len"}),
        (("serve", "--no-enable-prefix-c"), {"--no-enable-prefix-caching"}),
        (("serve", "--uvicorn-log-level", "crit"), {"critical"}),
        (("models", "--how", "nat"), {"native"}),
        (("completion", "z"), {"zsh"}),
    ],
)
def test_bash_completes(scripts: Path, words: tuple[str, ...], expected: set[str]) -> None:
    assert completions(scripts, *words) == expected


def test_refused_flags_are_not_offered(scripts: Path) -> None:
    assert completions(scripts, "serve", "--enable-db") == set()


def test_command_without_engine_options_offers_its_own_only(scripts: Path) -> None:
    assert completions(scripts, "pull", "--max-model-l") == set()
    assert "--dry-run" in completions(scripts, "pull", "--d")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_commands_and_flags(scripts: Path, shell: str) -> None:
    text = (scripts / shell).read_text()
    for word in ("completion", "pull", "tune", "max-model-len", "tokens-per-second"):
        assert word in text


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_accepts_its_script(scripts: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n", str(scripts / shell)], check=True, capture_output=True)


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
