"""Client libraries with a server, from their own environment (`make clients`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from core.testing.checkpoints import make_checkpoint
from tests.served import COLD, served
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = ROOT / "examples" / "clients"
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
CALL = (
    "<think>It needs the weather.</think>Wait.\n"
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
)
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "think")
SMALL = (
    "--dtype",
    "float32",
    "--max-model-len",
    "64",
    "--num-threads",
    "1",
    "--hf-overrides.is_matryoshka",
    "true",
)
EXPECTED = {
    "with_cohere": ["embeddings", "rankings", "together", "refusals"],
    "with_cohere_chat": ["chat", "tools", "form", "together", "refusals"],
    "with_langchain_pooled": ["embeddings"],
    "with_litellm_pooled": [
        "embeddings",
        *(f"rankings {name}/bert" for name in ("cohere", "hosted_vllm", "jina_ai")),
    ],
    "with_langchain": [
        *(
            f"{what} {how}"
            for how in ("{}", "{'use_responses_api': True}")
            for what in ("chat", "tools", "form")
        ),
        *("completions", "together"),
    ],
    "with_litellm": [
        *(
            f"{what} {name}"
            for name in ("openai/demo", "hosted_vllm/demo", "anthropic/claude-sonnet-4-5")
            for what in ("chat", "tools")
        ),
        *("form", "completions and responses", "together", "refusals"),
    ],
}
"""Lines that each program prints for its successful parts."""

pytestmark = [
    pytest.mark.slow,  # some of the libraries take many seconds to be imported
    pytest.mark.skipif(
        not PYTHON.exists(), reason="the clients are not installed (`make clients`)"
    ),
]


@pytest.fixture(scope="module")
def url_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return the URL of a program's model; the first call starts its server."""
    with ExitStack() as stack:
        urls: dict[bool, str] = {}

        def find(program: str) -> str:
            pooled = program.endswith(("pooled", "cohere"))
            if pooled not in urls:
                arguments = [
                    "scripted:",
                    "--served-model-name",
                    "demo",
                    "claude-*",
                    *FLAGS,
                    COLD[0],
                    "true",
                ]
                if pooled:
                    folder = tmp_path_factory.mktemp("pooled") / "bert"
                    make_checkpoint("BertModel", folder, seed=1)
                    arguments = [str(folder), *SMALL, "--served-model-name", "bert"]
                urls[pooled] = str(stack.enter_context(served(*arguments)).base_url).removesuffix(
                    "/v1/"
                )
            return urls[pooled]

        yield find


def run(*command: str | Path, **variables: str) -> str:
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ENGINE_", "OPENAI_"))
    }
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # which it would fetch
    done = subprocess.run(
        command,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", EXPECTED)
def test_client_library_runs_against_server(program: str, url_for: Callable[[str], str]) -> None:
    printed = run(PYTHON, PROGRAMS / f"{program}.py", url_for(program), CALL).splitlines()
    assert [line for line in printed if line in EXPECTED[program]] == EXPECTED[program]


@pytest.mark.parametrize("example", ["langchain_chat", "llamaindex_chat"])
def test_client_example_prints_its_answer(example: str, url_for: Callable[[str], str]) -> None:
    """The scripted model repeats the prompt."""
    assert "refix caching?" in run(
        PYTHON, EXAMPLES / f"{example}.py", ENGINE_URL=url_for(example), ENGINE_MODEL="demo"
    )
