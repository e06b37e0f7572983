"""Coding agents, where they are installed (`npm install -g @anthropic-ai/claude-code @openai/codex opencode-ai`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE_S
from served import served

PROVIDER = 'model_providers.local={{name="local",base_url="{url}/v1",wire_api="responses"}}'
ASKED = "Make the file."


def claude(url: str) -> tuple[list[str], dict[str, str]]:
    variables = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none"}
    return ["-p", ASKED, "--allowedTools", "Bash"], variables | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def codex(url: str) -> tuple[list[str], dict[str, str]]:
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "demo"]
    return ["exec", *flags, "-c", "model_provider=local", "-c", PROVIDER.format(url=url), ASKED], {}


def opencode(url: str) -> tuple[list[str], dict[str, str]]:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"demo": {}}}
    config = {"model": "local/demo", "provider": {"local": provider}}
    return ["run", ASKED], {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def call(name: str, argument: str) -> str:
    arguments = {argument: "echo made-by-an-agent > made.txt", "description": "Make a file"}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@contextmanager
def scripted(answers: list[str], folder: Path) -> Iterator[str]:
    """Serve a model that gives these answers in turn."""
    file = folder / "answers.txt"
    file.write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))
    flags = ["--scripted-answers", str(file), "--scripted-max-model-len", "1000000", "--enable-auto-tool-choice"]
    names = ["--served-model-name", "demo", "claude-*"]
    with served("scripted:", *flags, "--tool-call-parser", "hermes", *names) as client:
        yield str(client.base_url).removesuffix("/v1/")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "how", "answers"),
    [
        ("claude", claude, [call("Bash", "command")]),
        ("codex", codex, [call("exec_command", "cmd")]),
        ("opencode", opencode, ["A title", call("bash", "command")]),
    ],
)
def test_an_agent_makes_a_file_and_tells_of_it(
    program: str, how: Callable[[str], tuple[list[str], dict[str, str]]], answers: list[str], tmp_path: Path
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    with scripted([*answers, "The file is there."], tmp_path) as url:
        arguments, variables = how(url)
        done = subprocess.run(
            [program, *arguments],
            cwd=work,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert "The file is there." in done.stdout, done.stdout + done.stderr
    assert (work / "made.txt").read_text() == "made-by-an-agent\n"
