"""The scripts of `examples/clients` against a server: those with installed packages run, the others
compile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.served import COLD, served
from tests.system.docs.pages import ROOT
from tests.timeouts import TIMEOUT_S

FOLDER = ROOT / "examples" / "clients"
NEEDS = {
    "http_api": (),
    "openai_chat": ("openai",),
    "openai_chat_with_reasoning": ("openai",),
    "openai_chat_with_tools": ("openai",),
    "openai_completion": ("openai",),
    "openai_responses": ("openai",),
    "openai_structured_outputs": ("openai",),
    "anthropic_messages": ("anthropic",),
    "langchain_chat": ("langchain_openai",),
    "llamaindex_chat": ("llama_index",),
}
ONE_PER_PROTOCOL = {"http_api", "openai_chat", "openai_responses", "anthropic_messages"}
"""In every run."""
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
SAYS = "Prefix caching keeps the KV blocks"
ANSWERS = {
    "anthropic_messages": rf"{SAYS}.* prompt tokens",
    "http_api": r"\d+ tokens: .*again a text: Hello there\.\n.*num_requests_running",
    "langchain_chat": SAYS,
    "llamaindex_chat": SAYS,
    "openai_chat": rf"{SAYS}.*name='Ada Lovelace' age=36 city='London'",
    "openai_chat_with_reasoning": r"reasoning: .+content: .*19",
    "openai_chat_with_tools": r"get_weather -> It is sunny in .+\.\nanswer: ",
    "openai_completion": r"'A robot may not.*'Once upon a time.*streamed",
    "openai_responses": rf"{SAYS}.*second turn: (completed|incomplete)",
    "openai_structured_outputs": r"choice -> (yes|no)\nregex -> \d{3}\njson -> \{.*\}",
}
"""What each prints, as a regular expression over lines."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(
        "--served-model-name",
        "demo",
        "--reasoning-parser",
        "think",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--max-num-seqs",
        "4",
        COLD[0],
        "true",
    ) as client:
        yield str(client.base_url).removesuffix("/v1/")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ONE_PER_PROTOCOL else pytest.mark.slow)
        for name in NEEDS
        if all(map(find_spec, NEEDS[name]))
    ],
)
def test_a_client_gets_its_answer(name: str, url: str) -> None:
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ENGINE_", "OPENAI_"))
    }
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"],
        env={**environment, "ENGINE_URL": url},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(ANSWERS[name], done.stdout, re.DOTALL), done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_client_is_python_and_is_named_in_the_list(name: str) -> None:
    compile((FOLDER / f"{name}.py").read_text(), name, "exec")
    assert f"examples/clients/{name}.py" in (FOLDER / "README.md").read_text()
