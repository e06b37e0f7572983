"""A server in a process of its own, and OpenAI's client for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import openai
from patience import PATIENCE_S

COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"


# Most servers here see no constraint, and none waits for what constraints need; give it as true to
# have it otherwise.
COLD = ("--structured-outputs-config.warm_up", "false")


@contextmanager
def served(*arguments: str) -> Iterator[openai.OpenAI]:
    """Run `engine serve` on a free port; it must end well when asked to."""
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
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
        ) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()  # the engine's other processes end with it
        process.wait()
        process.stdout.close()
