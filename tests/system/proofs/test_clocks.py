"""Wall clocks that jump by hours change no stream, no time limit and no stored response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.system.proofs.test_api_death import serving
from tests.timeouts import TIMEOUT_S

HOUR_S = 3600
JUMPS_S = (5 * HOUR_S, -9 * HOUR_S, 400 * 24 * HOUR_S, 0)
CLOCK = '''
"""Moves the wall clock of every process by the seconds in a file."""
import time
from pathlib import Path

from core.api import hookimpl

FILE = Path({path!r})
real, real_ns = time.time, time.time_ns


def offset():
    return int(FILE.read_text() or 0)


time.time = lambda: real() + offset()
time.time_ns = lambda: real_ns() + offset() * 10**9


@hookimpl
def engine_process_start(process):
    pass
'''


def test_jumps_of_the_wall_clock_change_nothing_but_time_stamps(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    plugin = tmp_path / "jumping.py"
    plugin.write_text(CLOCK.format(path=str(clock)))
    request = {"prompt": "ab " * 20, "max_tokens": 300, "ignore_eos": True, "stream": True}
    limits = ("--request-timeout", "3000", "--heartbeat-timeout", "120")

    def jump(seconds: int) -> None:
        part = tmp_path / "part"
        part.write_text(str(seconds))
        part.replace(clock)

    with (
        serving(tmp_path, "scripted:", "--plugins", str(plugin), *limits) as service,
        httpx.Client(base_url=service.url, timeout=TIMEOUT_S) as client,
    ):

        def stream(jumps: tuple[int, ...]) -> str:
            left = [*jumps]
            text = ""
            with client.stream("POST", "/v1/completions", json=request) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["text"]
                        if left:
                            jump(left.pop(0))
            assert not left
            return text

        def create() -> dict[str, Any]:
            made = client.post("/v1/responses", json={"input": "a", "max_output_tokens": 4})
            assert made.status_code == 200, made.text
            answer: dict[str, Any] = made.json()
            return answer

        expected = stream(())
        first = create()
        for seconds in JUMPS_S:
            assert stream((seconds,)) == expected
            made = create()
            assert abs(made["created_at"] - first["created_at"] - seconds) < HOUR_S
            for stored in (first, made):
                found = client.get(f"/v1/responses/{stored['id']}")
                assert found.json()["output"] == stored["output"]
        assert stream(JUMPS_S) == expected
        health = client.get("/health").json()
        assert (health["status"], health["restarts"], health["server_restarts"]) == ("ready", 0, 0)
