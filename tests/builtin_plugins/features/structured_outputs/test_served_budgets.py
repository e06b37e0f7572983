"""Over HTTP: constraints over budget get a 400; the API process loads no grammar library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.served import served

pytest.importorskip("xgrammar")
FAULTY_BACKEND = Path(__file__).with_name("faulty_backend.py")
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
    plugin = ("--plugins", f"+{FAULTY_BACKEND}")
    with served(
        "scripted:", "--max-model-len", "512", *plugin, f"{CONFIG}backend", "strange", *BUDGETS
    ) as made:
        yield made


def complete(client: openai.OpenAI, regex: str, *, stream: bool = False) -> object:
    return client.completions.create(
        model="scripted:",
        prompt="abcdefghij",
        max_tokens=8,
        stream=stream,
        extra_body={"structured_outputs": {"regex": regex}},
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("regex", "message"),
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
        ("(a*)*", "contains a nested repetition that may be empty"),
    ],
)
def test_constraints_over_budget_are_rejected(
    client: openai.OpenAI, regex: str, message: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        complete(client, regex, stream=stream)
    assert message in str(raised.value)
    assert raised.value.param == "structured_outputs.regex"
    complete(client, "quick")


def test_masks_over_output_budget_fail_answer_and_stream(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(
        openai.BadRequestError,
        match=r"0\.9 s of work for the tokens of one output .*output_budget_s",
    ):
        complete(client, "slow 250")
    stream = complete(client, "slow 250", stream=True)
    assert isinstance(stream, openai.Stream)
    with pytest.raises(
        openai.APIError, match=r"0\.9 s of work for the tokens of one output .*output_budget_s"
    ):
        list(stream)


def test_refusal_within_an_output_fails_answer_and_stream(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="too many states") as raised:
        complete(client, "tires")
    assert raised.value.param == "structured_outputs.regex"
    stream = complete(client, "tires", stream=True)
    assert isinstance(stream, openai.Stream)
    texts: list[str] = []
    with pytest.raises(openai.APIError, match="cannot be held: too many states"):
        texts.extend(chunk.choices[0].text for chunk in stream)
    assert "".join(texts) == "abc"
    complete(client, "quick")


@pytest.mark.usefixtures("new_interpreters")
def test_api_process_loads_neither_torch_nor_a_grammar_library() -> None:
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
        names = ("libtorch", "xgrammar", "llguidance")
        assert [name for name in names if name in maps(server)] == []
        assert [name for name in names if name in maps(engine)] == ["libtorch"]
        assert "llguidance" in maps(grammars)


def named(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has exited
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()
