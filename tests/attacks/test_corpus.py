"""Every file of the corpus against one server, beside a healthy stream; and again against one
without asserts.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from random import Random
from typing import Any

import pytest
from attacked import COMMAND, PATIENCE_S, ROOT, Answer, Attacked, Neighbour, attacked
from corpus_files import Attack, Request, load_corpus
from msgspec.structs import replace

CORPUS = load_corpus()
ASKED = [name for name, attack in CORPUS.items() if attack.request or attack.raw]
AT_A_TIME = 16
WITHOUT_ASSERTS = {"PYTHONOPTIMIZE": "1"}
"""What `python -O` does, for child processes too."""


@pytest.fixture(scope="module")
def server() -> Iterator[Attacked]:
    """One server for all."""
    with attacked() as found:
        yield found


@pytest.fixture(scope="module")
def neighbour(server: Attacked) -> Neighbour:
    return Neighbour(server)


@pytest.fixture(scope="module")
def server_without_asserts() -> Iterator[Attacked]:
    """The same, with all asserts of the engine taken out."""
    with attacked("--disable-uvicorn-access-log", environment=WITHOUT_ASSERTS) as found:
        yield found


@pytest.mark.parametrize("name", ASKED)
def test_an_attack_is_answered_as_it_should_and_changes_nothing_beside(
    server: Attacked, neighbour: Neighbour, name: str
) -> None:
    assert_survives(server, neighbour, CORPUS[name], slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in ASKED if any(each.slow for each in CORPUS[name].request)]
)
def test_an_attack_of_full_size_too(server: Attacked, neighbour: Neighbour, name: str) -> None:
    assert_survives(server, neighbour, CORPUS[name], slow=True)


@pytest.mark.slow
def test_sixteen_attacks_at_a_time_are_answered_as_one_is(
    server: Attacked, neighbour: Neighbour
) -> None:
    """Or told to come again, for there is room for so many bytes and requests of one client."""
    requests = [each for attack in CORPUS.values() for each in attack.request if not each.slow]
    assert len(requests) > 100
    Random(0).shuffle(requests)
    engines = server.engines()
    with neighbour.beside(), ThreadPoolExecutor(AT_A_TIME) as pool:
        asked = [pool.submit(server.ask, each) for each in requests]
        for request, future in zip(requests, asked, strict=True):
            answers = [answer for answer in future.result() if answer.status not in (429, 503)]
            assert_answered(answers, replace(request, times=len(answers)))
    assert engines <= server.engines(), "a process was replaced"
    assert server.get("/health").json()["restarts"] == 0
    assert server.calls == []


@pytest.mark.slow  # an assert would be no answer of the other server's either
@pytest.mark.parametrize("name", ASKED)
def test_no_refusal_is_an_assert(server_without_asserts: Attacked, name: str) -> None:
    for request in CORPUS[name].request:
        if not request.slow:
            assert_answered(server_without_asserts.ask(request), request)
    assert server_without_asserts.get("/livez").status_code == 200


def assert_survives(server: Attacked, neighbour: Neighbour, attack: Attack, *, slow: bool) -> None:
    """Send what an attack sends; the engine stays, its neighbour's tokens too, and nobody was
    called.
    """
    engines = server.engines()
    assert engines
    with neighbour.beside():
        for request in attack.request:
            if request.slow == slow:
                assert_answered(server.ask(request), request)
        for raw in [] if slow else attack.raw:
            answer = server.send(raw)
            assert answer.status in raw.status, answer
            assert raw.said in answer.text
            assert not answer.faults()
        assert server.get("/livez").status_code == 200
    assert engines <= server.engines(), "a process was replaced"
    assert server.get("/health").json()["restarts"] == 0
    assert server.calls == []


def assert_answered(answers: list[Answer], request: Request) -> None:
    """Every answer is one of those foreseen, names the field, and tells nothing of the inside."""
    assert len(answers) == request.times
    for answer in answers:
        assert answer.status in request.status, answer
        assert not answer.faults()
        if 400 <= answer.status < 500 and request.param:
            assert answer.error["param"] == request.param
        if request.said:
            assert request.said in answer.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(each.arguments, each.said, id=f"{n}-{i}")
        for n, a in CORPUS.items()
        for i, each in enumerate(a.command)
    ],
)
def test_a_command_is_refused_in_words(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode > 0, f"ended with {done.returncode}"
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "environment",
    [{}, pytest.param(WITHOUT_ASSERTS, marks=pytest.mark.slow)],
    ids=["plain", "without asserts"],
)
def test_what_needs_no_server_holds(environment: dict[str, str]) -> None:
    """All checks in one process, because most of its time is its start."""
    names = sorted({check for attack in CORPUS.values() for check in attack.check})
    assert names
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "attacks" / "checks.py"), *names],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "place", sorted({test for attack in CORPUS.values() for test in attack.test})
)
def test_a_test_that_is_pointed_at_exists(place: str) -> None:
    path, _, name = place.partition("::")
    assert name in names_in(path)


@cache
def names_in(path: str) -> frozenset[str]:
    tree: Any = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_file_shows_something_and_says_whence() -> None:
    for name, attack in CORPUS.items():
        shown = [*attack.request, *attack.raw, *attack.command, *attack.check, *attack.test]
        assert shown, name
        assert attack.source, name
        assert re.fullmatch(r"[a-z0-9-]+", name)
