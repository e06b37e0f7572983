"""A server in a process of its own, and OpenAI's client for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import openai

COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"


@contextmanager
def served(*arguments: str) -> Iterator[openai.OpenAI]:
    """Run `engine serve` on a free port; it must end well when asked to."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    process.stdout.close()
