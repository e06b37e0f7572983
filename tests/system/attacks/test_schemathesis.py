"""Schemathesis with `/openapi.json`: no 5xx, no undescribed response, healthy streams unchanged.

Runs if schemathesis is installed (`pip install schemathesis`); the testing extra has no such
dependency.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.system.attacks.server_under_test import (
    KEY,
    TIMEOUT_S,
    HealthyClient,
    ServerUnderTest,
    start_server,
)

pytest.importorskip("schemathesis")

SECONDS = 600
"""Time limit in seconds; a busy machine needs less for a thousand requests."""
QUIET = ("--disable-uvicorn-access-log", "--log-level", "error", "--uvicorn-log-level", "error")
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "response_headers_conformance", "negative_data_rejection"),
    *("missing_required_header", "unsupported_method", "ignored_auth"),
)
"""Not `positive_data_acceptance`: many bodies that match the schema are rejected with a 400 that
names the field, because of another field or of the model.
"""


def run(server: ServerUnderTest, folder: Path, *options: str) -> tuple[int, int, str]:
    """Return the exit status, the number of requests and the output."""
    description = f"{server.url}/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", description, "--seed", "1"]
    command += ["-H", f"Authorization: Bearer {KEY}", "--checks", ",".join(CHECKS)]
    command += ["--request-timeout", str(TIMEOUT_S)]
    command += ["--continue-on-failure", "--suppress-health-check", "all"]
    command += ["--generation-database", "none", *options]
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=folder
    )
    output = done.stdout + done.stderr
    generated = re.search(r"(\d+) generated", output)
    return done.returncode, int(generated[1]) if generated else 0, output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "options", "streaming"),
    [
        (
            ["--enable-tokenizer-info-endpoint"],
            ["--phases", "coverage,fuzzing", "--max-time", str(SECONDS)],
            True,
        ),
        # No healthy stream: operator routes end its requests. No /pause: it stops all answers.
        (
            [
                "--enable-operator-routes",
                "--tokens-only",
                "--enable-server-load-tracking",
                "--plugins",
                "+playground",
            ],
            ["--phases", "coverage", "--exclude-path", "/pause"],
            False,
        ),
    ],
    ids=["with stream", "operator routes"],
)
def test_all_responses_match_description(
    flags: list[str], options: list[str], streaming: bool, tmp_path: Path
) -> None:
    with start_server(*QUIET, *flags) as server:
        engines = server.engine_pids()
        with HealthyClient(server).streaming() if streaming else nullcontext():
            status, sent, output = run(server, tmp_path, *options)
        assert sent > 1000, output
        assert status == 0, output
        assert engines <= server.engine_pids(), "a process was replaced"
        assert server.get("/health").json()["restarts"] == 0
