"""Every corpus file against one server with a healthy stream, and against one without asserts."""

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
from msgspec.structs import replace

from tests.system.attacks.corpus_files import Attack, Request, load_corpus
from tests.system.attacks.server_under_test import (
    COMMAND,
    ROOT,
    TIMEOUT_S,
    Answer,
    HealthyClient,
    ServerUnderTest,
    start_server,
)

CORPUS = load_corpus()
WITH_REQUESTS = [name for name, attack in CORPUS.items() if attack.request or attack.raw]
LONG = {"deep-grammars", "schemas-that-are-none", "compiled-for-ever", "nested-stars"}
"""Attacks that keep a compiler at work until its bound."""
CONCURRENCY = 16
WITHOUT_ASSERTS = {"PYTHONOPTIMIZE": "1"}
"""Like `python -O`, for child processes too."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerUnderTest]:
    with start_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerUnderTest) -> HealthyClient:
    return HealthyClient(server)


@pytest.fixture(scope="module")
def server_without_asserts() -> Iterator[ServerUnderTest]:
    with start_server("--disable-uvicorn-access-log", environment=WITHOUT_ASSERTS) as running:
        yield running


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in WITH_REQUESTS],
)
def test_attack_gets_expected_answer_and_healthy_stream_is_unchanged(
    server: ServerUnderTest, client: HealthyClient, name: str
) -> None:
    assert_survives(server, client, CORPUS[name], slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name for name in WITH_REQUESTS if any(request.slow for request in CORPUS[name].request)],
)
def test_slow_attack_gets_expected_answer(
    server: ServerUnderTest, client: HealthyClient, name: str
) -> None:
    assert_survives(server, client, CORPUS[name], slow=True)


@pytest.mark.slow
def test_sixteen_concurrent_attacks_get_expected_answers(
    server: ServerUnderTest, client: HealthyClient
) -> None:
    # Or 429 or 503: bytes and requests in flight are limited per client.
    requests = [
        request for attack in CORPUS.values() for request in attack.request if not request.slow
    ]
    assert len(requests) > 100
    Random(0).shuffle(requests)
    engines = server.engine_pids()
    with client.streaming(), ThreadPoolExecutor(CONCURRENCY) as pool:
        futures = [pool.submit(server.send, request) for request in requests]
        for request, future in zip(requests, futures, strict=True):
            answers = [answer for answer in future.result() if answer.status not in (429, 503)]
            assert_answered(answers, replace(request, times=len(answers)))
    assert engines <= server.engine_pids(), "a process was replaced"
    assert server.get("/health").json()["restarts"] == 0
    assert server.canary_calls == []


@pytest.mark.slow  # a failed assert is no expected answer in the tests above either
@pytest.mark.parametrize("name", WITH_REQUESTS)
def test_no_rejection_depends_on_assert(server_without_asserts: ServerUnderTest, name: str) -> None:
    for request in CORPUS[name].request:
        if not request.slow:
            assert_answered(server_without_asserts.send(request), request)
    assert server_without_asserts.get("/livez").status_code == 200


def assert_survives(
    server: ServerUnderTest, client: HealthyClient, attack: Attack, *, slow: bool
) -> None:
    """Send an attack; engine processes and healthy streams stay, the canary gets no call."""
    engines = server.engine_pids()
    assert engines
    with client.streaming():
        for request in attack.request:
            if request.slow == slow:
                assert_answered(server.send(request), request)
        for raw in [] if slow else attack.raw:
            answer = server.send_raw(raw)
            assert answer.status in raw.status, answer
            assert raw.contains in answer.text
            assert not answer.faults()
        assert server.get("/livez").status_code == 200
    assert engines <= server.engine_pids(), "a process was replaced"
    assert server.get("/health").json()["restarts"] == 0
    assert server.canary_calls == []


def assert_answered(answers: list[Answer], request: Request) -> None:
    """Every answer has an expected status, names the field and leaks nothing."""
    assert len(answers) == request.times
    for answer in answers:
        assert answer.status in request.status, answer
        assert not answer.faults()
        if 400 <= answer.status < 500 and request.param:
            assert answer.error["param"] == request.param
        if request.contains:
            assert request.contains in answer.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(command.arguments, command.contains, id=f"{name}-{i}")
        for name, attack in CORPUS.items()
        for i, command in enumerate(attack.command)
    ],
)
def test_command_is_rejected_with_message(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode > 0, f"ended with {done.returncode}"
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "environment",
    [{}, pytest.param(WITHOUT_ASSERTS, marks=pytest.mark.slow)],
    ids=["plain", "without asserts"],
)
def test_checks_without_server_pass(environment: dict[str, str]) -> None:
    """All checks run in one process, since the start takes longer than a check."""
    names = sorted({check for attack in CORPUS.values() for check in attack.check})
    assert names
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "system" / "attacks" / "checks.py"), *names],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "reference", sorted({test for attack in CORPUS.values() for test in attack.test})
)
def test_referenced_test_exists(reference: str) -> None:
    path, _, name = reference.partition("::")
    assert name in functions_in(path)


@cache
def functions_in(path: str) -> frozenset[str]:
    tree: Any = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_file_has_source_and_evidence() -> None:
    for name, attack in CORPUS.items():
        assert attack.request or attack.raw or attack.command or attack.check or attack.test, name
        assert attack.source, name
        assert re.fullmatch(r"[a-z0-9-]+", name)
