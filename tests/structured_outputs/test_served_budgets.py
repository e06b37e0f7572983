"""Over HTTP: what a constraint may not cost is a 400 that names field and setting, and the process
that serves loads no library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from served import served

pytest.importorskip("xgrammar")
STRANGE = Path(__file__).with_name("strange_backend.py")
CONFIG = "--structured-outputs-config."
BUDGETS = (
    f"{CONFIG}compile_timeout_s",
    "0.6",
    f"{CONFIG}mask_budget_s",
    "0.3",
    f"{CONFIG}output_budget_s",
    "0.9",
)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    plugin = ("--plugins", f"+{STRANGE}")
    with served(
        "scripted:", "--max-model-len", "512", *plugin, f"{CONFIG}backend", "strange", *BUDGETS
    ) as made:
        yield made


def ask(client: openai.OpenAI, regex: str, *, stream: bool = False) -> object:
    return client.completions.create(
        model="scripted:",
        prompt="abcdefghij",
        max_tokens=8,
        stream=stream,
        extra_body={"structured_outputs": {"regex": regex}},
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("regex", "said"),
    [
        (
            "work",
            "takes more than 0.6 s of work to compile "
            "(--structured-outputs-config.compile_timeout_s)",
        ),
        (
            "slow 3600000",
            "takes more than 0.3 s of work for one token "
            "(--structured-outputs-config.mask_budget_s)",
        ),
        ("refused", "is not to my liking."),
        ("(a*)*", "holds the repetition of what may be empty"),
    ],
)
def test_what_costs_too_much_is_refused_by_name(
    client: openai.OpenAI, regex: str, said: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, regex, stream=stream)
    assert said in str(raised.value)
    assert raised.value.param == "structured_outputs.regex"
    ask(client, "quick")


def test_masks_that_cost_too_much_together_are_an_error_of_the_answer_or_of_its_stream(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(
        openai.BadRequestError,
        match=r"0\.9 s of work for the tokens of one output .*output_budget_s",
    ):
        ask(client, "slow 250")
    stream = ask(client, "slow 250", stream=True)
    assert isinstance(stream, openai.Stream)
    with pytest.raises(
        openai.APIError, match=r"0\.9 s of work for the tokens of one output .*output_budget_s"
    ):
        list(stream)


def test_the_process_that_serves_loads_neither_torch_nor_a_grammar_library() -> None:
    others = set(children(os.getpid()))
    with served("scripted:", "--max-model-len", "512", f"{CONFIG}warm_up", "true") as client:
        answer = client.completions.create(
            model="scripted:",
            prompt="ab",
            max_tokens=8,
            extra_body={"structured_outputs": {"choice": ["ab"]}},
        )
        assert answer.choices[0].text == "ab"
        mine = set(children(os.getpid())) - others
        ((parent, server),) = [
            (own, pid) for own in mine for pid in children(own) if named(pid) == "engine-api"
        ]
        (engine,) = [pid for pid in children(parent) if not named(pid).startswith("engine-")]
        (grammars,) = [pid for pid in children(engine) if named(pid) == "engine-grammars"]
        assert [name for name in ("libtorch", "xgrammar") if name in maps(server)] == []
        assert [name for name in ("libtorch", "xgrammar") if name in maps(engine)] == ["libtorch"]
        assert "xgrammar" in maps(grammars)


def named(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()
