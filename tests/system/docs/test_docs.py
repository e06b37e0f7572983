"""The documentation is true: its commands run and print what it says, its pages link to pages that
exist.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.testing.checkpoints import make_checkpoint
from tests.system.docs.pages import DOCS, ROOT, Session, blocks, commands, matches
from tests.system.docs.warm import CLIENT

AUTHORS_PAGES = ("plugins",)
"""They take many starts."""
PAGES = [
    pytest.param(page, marks=[pytest.mark.slow] * (page.stem in AUTHORS_PAGES), id=page.stem)
    for page in sorted(DOCS.rglob("*.md"))
    if "```console" in page.read_text()
]
MODEL = "Qwen/Qwen3-0.6B"
"""What pages with sessions serve; a tiny one stands in for it."""
SESSIONS = [page for page in sorted(DOCS.rglob("*.md")) if "```shell-session" in page.read_text()]


def environment_in(folder: Path) -> dict[str, str]:
    """Make an environment, into which a page may install, that sees the packages of this one."""
    venv.create(folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    packages, scripts = (
        Path(sysconfig.get_path(name, "venv", paths)) for name in ("purelib", "scripts")
    )
    here = sysconfig.get_path("purelib")
    (packages / "engine_docs.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    for name, module in (("engine", "core.cli.main"), ("pip", "pip._internal.cli.main")):
        (scripts / name).write_text(
            f"#!{scripts / 'python'}\nimport sys\nfrom {module} import main\n\n"
            "if __name__ == '__main__':\n    sys.exit(main())\n"
        )
        (scripts / name).chmod(0o755)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ENGINE_", "PYTHON", "COV_"))
    }
    return {
        **inherited,
        "PATH": f"{scripts}{os.pathsep}{inherited['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """One for all pages: what one installs is there for the next."""
    return environment_in(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture
def fresh_environment(tmp_path_factory) -> dict[str, str]:
    """One in which nothing was installed: a server's session shows the plugins that it has."""
    return environment_in(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture(scope="module")
def warmed(environment: dict[str, str], tmp_path_factory) -> Iterator[dict[str, str]]:
    """The same, in which programs of Python need not import torch: one interpreter has done that
    for all.
    """
    folder = tmp_path_factory.mktemp("warmed")
    scripts = Path(environment["PATH"].partition(os.pathsep)[0])
    here = folder / "python"
    address = str(folder / "socket")
    here.write_text(CLIENT.format(python=str(scripts / "python"), address=address))
    (folder / "engine").write_text(
        (scripts / "engine").read_text().replace(f"#!{scripts / 'python'}", f"#!{here}")
    )
    for script in (here, folder / "engine"):
        script.chmod(0o755)
    program = [scripts / "python", Path(__file__).parent / "warm.py", address]
    server = subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with server, server.stdout:
        assert server.stdout.readline() == "ready\n"
        yield {**environment, "PATH": f"{folder}{os.pathsep}{environment['PATH']}"}
        os.killpg(server.pid, signal.SIGKILL)


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_page_says(page, warmed, tmp_path):
    for language, title, text in blocks(page):
        if title:
            (tmp_path / title).write_text(text)
        if language != "console":
            continue
        for command, expected in commands(text):
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=warmed,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
            for line in expected:
                assert line == "..." or line in done.stdout.splitlines(), (
                    f"$ {command}\nsays\n{done.stdout}not\n{line}"
                )


@pytest.mark.slow  # a session with real waits: on a busy machine a line may come late
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_sessions_go_as_the_page_says(page, fresh_environment, tmp_path):
    """A page's `shell-session` blocks are one session; numbers, folders and a line `...` stand for
    any.
    """
    here = {
        "8000": free_port(),
        MODEL: str(make_checkpoint("Qwen3ForCausalLM", tmp_path / "model")),
    }
    shell = Session(tmp_path, fresh_environment)
    try:
        for language, title, text in blocks(page):
            text = replaced(text, here)
            if title:
                (tmp_path / title).write_text(text)
            for command, expected in commands(text) if language == "shell-session" else ():
                seen = shell.run(command)
                assert matches(expected, seen), "\n".join(
                    [f"$ {command}", *expected, "", "but it printed", *seen]
                )
    finally:
        shell.close()


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def replaced(text: str, here: dict[str, str]) -> str:
    for name, meant in here.items():
        text = text.replace(name, meant)
    return text


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_python_on_the_pages_is_python(page):
    for language, title, text in blocks(page):
        if language == "python":
            compile(text, f"{page}:{title}", "exec")


def test_documentation_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_question_of_the_quick_start_is_one_that_make_serve_prints():
    printed = subprocess.run(
        [ROOT / "scripts" / "curl-line", "8000", "demo"], capture_output=True, text=True, check=True
    )
    (request,) = (text for _, _, text in blocks(DOCS / "index.md") if text.startswith("curl "))
    assert [line.strip() for line in request.splitlines()] == [
        line.strip() for line in printed.stdout.split("\n\n")[2].splitlines()
    ]


def test_links_of_the_readme_lead_somewhere():
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []
