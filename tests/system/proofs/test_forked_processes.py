"""A process that `subprocess` forks for the tests looks as a new Python does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fork_server
from tests.forking import SERVER, ForkingPopen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")


@pytest.fixture(params=[True, False], ids=["forked", "new"])
def is_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    before = SERVER.is_enabled
    SERVER.is_enabled = request.param
    yield
    SERVER.is_enabled = before


def engine(*arguments: str) -> list[str]:
    return [sys.executable, *fork_server.ENGINE, *arguments]


@pytest.mark.usefixtures("is_forked")
def test_output_and_status_are_those_of_a_new_python(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("no_such_option: 1")
    done = subprocess.run(
        engine("config", "show", "--config", "engine.yaml"),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no_such_option" in done.stderr


@pytest.mark.usefixtures("is_forked")
def test_process_has_its_own_command_line_folder_and_group(tmp_path: Path) -> None:
    command = engine("parse", "--json", "--reasoning-parser", "think")
    reading, writing = os.pipe()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        pass_fds=(writing,),
        process_group=0,
        env={**os.environ, "ENGINE_TEST": "1"},
    ) as process:
        folder = Path(f"/proc/{process.pid}")
        while not (line := (folder / "cmdline").read_bytes().rstrip(b"\0")):
            pass  # the system is still replacing the program
        assert line.split(b"\0") == [os.fsencode(word) for word in command]
        assert (folder / "comm").read_text().strip() == Path(sys.executable).name
        assert (folder / "cwd").readlink() == tmp_path
        numbers = {int(each.name) for each in (folder / "fd").iterdir()}
        assert {0, 1, 2, writing} <= numbers
        assert reading not in numbers
        assert os.getpgid(process.pid) == process.pid
        parsed, _ = process.communicate("<think>Why?</think>Because.")
    assert process.returncode == 0
    assert json.loads(parsed)["message"]["content"] == "Because."
    os.close(reading)
    os.close(writing)


def test_variables_that_imports_read_need_a_new_python() -> None:
    ours = fork_server.read_at_import(os.environ)
    assert fork_server.can_fork(engine(), {**os.environ, "ENGINE_API_KEY": "k"}, ours)
    # set by an import of transformers, and not read before something is compiled
    assert fork_server.can_fork(engine(), {**os.environ, "TORCHINDUCTOR_CACHE_DIR": "c"}, ours)
    assert not fork_server.can_fork(engine(), {**os.environ, "OMP_NUM_THREADS": "64"}, ours)
    assert not fork_server.can_fork(engine(), {**os.environ, "LD_PRELOAD": "/x.so"}, ours)
    assert not fork_server.can_fork([sys.executable, "-c", "pass"], os.environ, ours)
    assert subprocess.Popen is ForkingPopen
