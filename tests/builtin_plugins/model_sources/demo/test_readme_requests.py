"""`make serve` answers the curl lines it prints as the README shows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]
COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"


def printed() -> list[dict[str, Any]]:
    """Return the bodies of the curl lines."""
    lines = subprocess.run(
        [ROOT / "scripts" / "curl-line", "8000", "demo"], capture_output=True, text=True, check=True
    ).stdout
    return [json.loads(body) for body in re.findall(r"-d '(.*?)'\n", lines, re.DOTALL)]


def question_of(body: dict[str, Any]) -> str:
    """Return the text of the body's message."""
    content = body["messages"][0]["content"]
    return content if isinstance(content, str) else str(content[-1]["text"])


def readme_answers() -> dict[str, str]:
    """Return the README's table of questions and answers."""
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        re.sub(r" \(with an? (tool|image)\)$", "", question): answer for question, answer in rows
    }


def as_in_readme(message: dict[str, Any]) -> str:
    """Return a message in the README's format."""
    if calls := message.get("tool_calls"):
        function = calls[0]["function"]
        return f"a call: `{function['name']}` `{function['arguments']}`"
    if reasoning := message.get("reasoning"):
        return f"{message['content']} (reasoning: {', '.join(reasoning.strip().splitlines())})"
    content = str(message["content"])
    return f"`{content}`" if content.startswith("{") else content


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    command = re.search(
        r"engine serve \$\(or \$\(MODEL\),(\S+)\) --port \$\(PORT\)$", makefile, re.MULTILINE
    )
    assert command is not None
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", command[1], "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()


def test_curl_lines_get_the_readme_answers(url):
    pytest.importorskip("xgrammar")
    answers = readme_answers()
    bodies = printed()
    assert len(bodies) == 5
    for body in bodies:
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
        assert response.status_code == 200, response.text
        assert as_in_readme(response.json()["choices"][0]["message"]) == answers[question_of(body)]


def test_demo_answers_to_every_name_that_it_lists(url):
    listed = [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]
    assert listed[0] == "demo"
    for name in [*listed, "demo:vision"]:
        body = {"model": name, "prompt": "x", "max_tokens": 1}
        response = httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT_S)
        assert response.json()["model"] == name
