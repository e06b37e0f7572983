"""Client libraries against a server, from an environment of their own where there is one (`make
clients`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from patience import PATIENCE_S
from served import COLD, served

from core.testing.checkpoints import make_checkpoint

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = ROOT / "examples" / "clients"
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
CALL = '<think>It wants the weather.</think>Wait.\n<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
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
SAID = {
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
"""What each program says has worked."""

pytestmark = [
    pytest.mark.slow,  # some of the libraries take many seconds to be imported
    pytest.mark.skipif(
        not PYTHON.exists(), reason="the clients are not installed (`make clients`)"
    ),
]


@pytest.fixture(scope="module")
def url_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return the address of the model that a program is for, which is served when first asked for."""
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
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", SAID)
def test_a_library_gets_what_it_asks_for(program: str, url_for: Callable[[str], str]) -> None:
    said = run(PYTHON, PROGRAMS / f"{program}.py", url_for(program), CALL).splitlines()
    assert [line for line in said if line in SAID[program]] == SAID[program]


@pytest.mark.parametrize("example", ["langchain_chat", "llamaindex_chat"])
def test_an_example_prints_its_answer(example: str, url_for: Callable[[str], str]) -> None:
    """The scripted model says what it was asked."""
    assert "refix caching?" in run(
        PYTHON, EXAMPLES / f"{example}.py", ENGINE_URL=url_for(example), ENGINE_MODEL="demo"
    )
