"""Coding agents, if they are installed (`npm install -g @anthropic-ai/claude-code @openai/codex
opencode-ai`).

Each runs a session with several tool calls, an interrupted stream and a resumed session. The model
is scripted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.served import served
from tests.timeouts import TIMEOUT_S

PROVIDER: Final = 'model_providers.local={{name="local",base_url="{url}/v1",wire_api="responses"}}'
INSTRUCTIONS: Final = "".join(f"Rule {number}: leave it as it is.\n" for number in range(800))
"""More than 20,000 tokens: the scripted model has one token per byte."""
NUM_INSTRUCTIONS: Final = len(INSTRUCTIONS.encode())
LONG_ANSWER: Final = "And so it goes on, a word at a time. " * 10_000
PROMPT: Final = "Make three files, then explain at length."
GO_ON: Final = "Make the last file."


@dataclass(frozen=True, slots=True)
class Session:
    """Command line of an agent for a folder."""

    first: tuple[str, ...]
    """Command line of a new session."""
    again: tuple[str, ...]
    """Command line that resumes the last session."""
    variables: dict[str, str]


def claude(url: str, work: Path) -> Session:
    rules = work.parent / "instructions.md"
    rules.write_text(INSTRUCTIONS)
    flags = ("--allowedTools", "Bash", "--append-system-prompt-file", str(rules))
    variables = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none"}
    variables["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1"
    return Session(
        ("claude", "-p", PROMPT, *flags), ("claude", "--continue", "-p", GO_ON, *flags), variables
    )


def codex(url: str, work: Path) -> Session:
    rules = work.parent / "instructions.md"
    rules.write_text(INSTRUCTIONS)
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "demo")
    settings = (
        "model_provider=local",
        PROVIDER.format(url=url),
        f"model_instructions_file={json.dumps(str(rules))}",
    )
    flags += tuple(part for setting in settings for part in ("-c", setting))
    return Session(
        ("codex", "exec", *flags, PROMPT), ("codex", "exec", "resume", "--last", *flags, GO_ON), {}
    )


def opencode(url: str, work: Path) -> Session:
    (work / "AGENTS.md").write_text(INSTRUCTIONS)
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"demo": {}}}
    config = {"model": "local/demo", "provider": {"local": provider}}
    variables = {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}
    # Without a title, the session would request one from the model.
    first = ("opencode", "run", "--title", "Files", PROMPT)
    return Session(first, ("opencode", "run", "--continue", GO_ON), variables)


def call(name: str, argument: str, number: int) -> str:
    """Return the model's text that creates a file."""
    arguments = {
        argument: f"echo made-by-an-agent > made-{number}.txt",
        "description": "Make a file",
    }
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@contextmanager
def scripted(answers: Sequence[str], folder: Path) -> Iterator[str]:
    """Serve a model with these answers in order, slow enough to be interrupted."""
    file = folder / "answers.txt"
    file.write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))
    flags = [
        "--scripted-answers",
        str(file),
        "--scripted-max-model-len",
        "1000000",
        "--enable-auto-tool-choice",
    ]
    pace = ["--scripted-tokens-per-second", "400"]
    names = ["--served-model-name", "demo", "claude-*"]
    with served("scripted:", *flags, *pace, "--tool-call-parser", "hermes", *names) as client:
        yield str(client.base_url).removesuffix("/v1/")


def metric(url: str, name: str) -> float:
    """Return the sum of all series of a metric."""
    lines = re.findall(
        rf"^{name}(?:{{.*}})? (\S+)$",
        httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text,
        re.MULTILINE,
    )
    return sum(map(float, lines))


def wait_until(true: Callable[[], bool], agent: subprocess.Popen[str] | None = None) -> None:
    """Wait until a condition is true; report the output of an agent that ends before."""
    until_s = time.monotonic() + TIMEOUT_S
    while not true():
        assert agent is None or agent.poll() is None, agent.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.1)


@contextmanager
def running(
    command: Sequence[str], work: Path, variables: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run an agent in its folder and its own process group, as in a terminal."""
    agent = subprocess.Popen(
        command,
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(work.parent / "home"), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with agent:
        try:
            yield agent
        finally:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
@pytest.mark.parametrize(
    ("how", "tool"),
    [
        (claude, ("Bash", "command")),
        (codex, ("exec_command", "cmd")),
        (opencode, ("bash", "command")),
    ],
    ids=["claude", "codex", "opencode"],
)
def test_agent_session_resumes_after_interruption(
    how: Callable[[str, Path], Session], tool: tuple[str, str], sent: signal.Signals, tmp_path: Path
) -> None:
    if shutil.which(how.__name__) is None:
        pytest.skip(f"{how.__name__} is not installed")
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "home").mkdir()
    calls = [call(*tool, number) for number in range(1, 5)]
    with scripted([*calls[:3], LONG_ANSWER, calls[3], "All files are there."], tmp_path) as url:
        session = how(url, work)
        with running(session.first, work, session.variables) as agent:
            num_called = sum(map(len, calls[:3]))
            wait_until(
                lambda: metric(url, "engine_generation_tokens_total") > num_called + 200, agent
            )
            assert metric(url, "engine_num_requests_running") == 1
            os.killpg(agent.pid, sent)
            agent.communicate(timeout=TIMEOUT_S)
        wait_until(lambda: metric(url, "engine_num_requests_running") == 0)
        assert metric(url, "engine_generation_tokens_total") < num_called + len(LONG_ANSWER)
        assert sorted(path.name for path in work.glob("made-*")) == [
            f"made-{number}.txt" for number in (1, 2, 3)
        ]

        known = metric(url, "engine_prompt_tokens_cached_total")
        with running(session.again, work, session.variables) as agent:
            output, complaints = agent.communicate(timeout=TIMEOUT_S)
        assert "All files are there." in output, output + complaints
        assert (work / "made-4.txt").read_text() == "made-by-an-agent\n"
        # Four prompts before, two now: each has the instructions, and finds what was computed of
        # them.
        assert metric(url, "engine_prompt_tokens_total") > 6 * NUM_INSTRUCTIONS
        assert metric(url, "engine_prompt_tokens_cached_total") - known > 1.5 * NUM_INSTRUCTIONS
