"""What schemathesis makes of `/openapi.json`: no 5xx, nothing that is not described, and a
neighbour that notices nothing.

Runs where schemathesis is installed (`pip install schemathesis`); it is no part of the testing
extra.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from attacked import KEY, PATIENCE_S, Attacked, Neighbour, attacked

pytest.importorskip("schemathesis")

SECONDS = 600
"""More than a busy machine needs for a thousand requests, and a bound for what comes then."""
QUIET = ("--disable-uvicorn-access-log", "--log-level", "error", "--uvicorn-log-level", "error")
TOLD = (
    *(
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    ),
    *(
        "response_headers_conformance",
        "negative_data_rejection",
        "missing_required_header",
        "unsupported_method",
    ),
    "ignored_auth",
)
"""Not `positive_data_acceptance`: of what a schema allows much is refused, with a 400 that names
the field, because of what
stands beside it, or of what the model is.
"""


def run(server: Attacked, folder: Path, *options: str) -> tuple[int, int, str]:
    """Return the exit status, how many requests there were, and what was said."""
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{server.url}/openapi.json",
        "--seed",
        "1",
    ]
    command += ["-H", f"Authorization: Bearer {KEY}", "--checks", ",".join(TOLD)]
    command += ["--request-timeout", str(PATIENCE_S)]
    command += [
        "--continue-on-failure",
        "--suppress-health-check",
        "all",
        "--generation-database",
        "none",
        *options,
    ]
    surroundings = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=surroundings, cwd=folder
    )
    said = done.stdout + done.stderr
    found = re.search(r"(\d+) generated", said)
    return done.returncode, int(found[1]) if found else 0, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "options", "beside"),
    [
        (
            ["--enable-tokenizer-info-endpoint"],
            ["--phases", "coverage,fuzzing", "--max-time", str(SECONDS)],
            True,
        ),
        # Who ends requests ends the neighbour's, and a paused engine answers nobody: that is what
        # was asked for.
        (
            [
                "--enable-operator-routes",
                "--tokens-only",
                "--enable-server-load-tracking",
                "--plugins",
                "+playground",
            ],
            ["--phases", "coverage", "--exclude-path", "/pause"],  # every operation to its end
            False,
        ),
    ],
    ids=["beside a stream", "operators"],
)
def test_nothing_that_is_not_described_comes_back(
    flags: list[str], options: list[str], beside: bool, tmp_path: Path
) -> None:
    with attacked(*QUIET, *flags) as server:
        engines = server.engines()
        with Neighbour(server).beside() if beside else nullcontext():
            status, sent, said = run(server, tmp_path, *options)
        assert sent > 1000, said
        assert status == 0, said
        assert engines <= server.engines(), "a process was replaced"
        assert server.get("/health").json()["restarts"] == 0
