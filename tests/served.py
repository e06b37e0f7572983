"""A server in a separate process, with OpenAI's client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from tests.timeouts import TIMEOUT_S

COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"


# Few tests use constraints, so servers do not warm them up; pass the flag with true to do so.
COLD = ("--structured-outputs-config.warm_up", "false")


@contextmanager
def served(*arguments: str) -> Iterator[openai.OpenAI]:
    """Run `engine serve` on a free port; it must exit with 0 on SIGTERM."""
    cold = () if COLD[0] in arguments else COLD
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", *arguments, *cold, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        with openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
        ) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()  # the engine's other processes end with it
        process.wait()
        process.stdout.close()
