"""Options of `engine bench serve` that shape requests, as the server gets them."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import pytest

from builtin_plugins.commands.bench.openai_api import arrival_times
from builtin_plugins.commands.bench.request_options import (
    add_request_options,
    choose_models,
    ramp_rates,
    request_fields,
)
from core.cli.main import main

EVENT = b'data: {"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n'


class Recording(BaseHTTPRequestHandler):
    """Answers each completion with one token, and records what it got."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(json.dumps({"data": [{"id": "base"}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.got.append((self.path, json.loads(body or b"{}"), dict(self.headers)))  # type: ignore[attr-defined]
        if self.path == "/tokenize":
            self.send_error(404)
        else:
            self._answer(EVENT if self.path.startswith("/v1/") else b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Recording)
    made.got = []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def bench(server: Any, *flags: str) -> list[Any]:
    """Return what the server got, without probes for a tokenizer."""
    url = f"http://127.0.0.1:{server.server_port}"
    fixed = ("--num-prompts", "4", "--output-len", "1", "--num-warmups", "0", "--disable-tqdm")
    assert main(["bench", "serve", "--base-url", url, *fixed, *flags]) == 0
    return [each for each in server.got if each[0] != "/tokenize"]


def test_sampling_flags_are_fields_of_every_request(server: Any) -> None:
    flags = "--backend vllm --temperature 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 --logprobs 2"
    flags += " --frequency-penalty 0.2 --presence-penalty 0.3 --repetition-penalty 1.1"
    got = bench(server, *flags.split(), "--no-ignore-eos", "--header", "X-Mine=yes")
    assert [path for path, _, _ in got] == ["/v1/completions"] * 4
    for _, body, headers in got:
        assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (
            0.5,
            0.9,
            7,
            0.1,
        )
        assert (body["frequency_penalty"], body["presence_penalty"]) == (0.2, 0.3)
        assert (body["repetition_penalty"], body["logprobs"]) == (1.1, 2)
        assert "ignore_eos" not in body
        assert headers["X-Mine"] == "yes"


def test_request_ids_are_a_prefix_and_a_number(server: Any) -> None:
    got = bench(server, "--request-id-prefix", "mine-")
    ids = {headers.get("X-Request-Id") for _, _, headers in got}
    assert ids == {"mine-0", "mine-1", "mine-2", "mine-3"}
    server.got.clear()
    assert not any("X-Request-Id" in headers for _, _, headers in bench(server))


def test_defaults_are_greedy_and_ignore_the_end(server: Any) -> None:
    for _, body, _ in bench(server, "--ignore-eos", "--served-model-name", "mine"):
        assert (body["temperature"], body["ignore_eos"], body["model"]) == (0, True, "mine")
        assert "top_p" not in body


def test_adapters_take_turns_or_are_drawn(server: Any) -> None:
    got = bench(server, "--lora-modules", "a", "b", "--lora-assignment", "round-robin")
    assert sorted(body["model"] for _, body, _ in got) == ["a", "a", "b", "b"]
    args = argparse.Namespace(lora_modules=["a", "b"], lora_assignment="random")
    drawn = choose_models(args, "base", 200, Random(0))
    assert 60 < drawn.count("a") < 140
    assert drawn == choose_models(args, "base", 200, Random(0))


def test_profile_surrounds_the_measured_requests(server: Any) -> None:
    paths = [path for path, _, _ in bench(server, "--profile")]
    assert (paths[0], paths[-1], len(paths)) == ("/start_profile", "/stop_profile", 6)


def test_label_is_in_the_result(server: Any, tmp_path: Any) -> None:
    file = tmp_path / "result.json"
    bench(server, "--label", "first", "--output-json", str(file))
    assert json.loads(file.read_text())["label"] == "first"


@pytest.mark.parametrize(
    ("strategy", "expected"), [("linear", [1, 3, 5, 7, 9]), ("exponential", [1, 2, 4, 8, 16])]
)
def test_ramp_up_raises_the_rate(strategy: str, expected: list[float]) -> None:
    rates = ramp_rates(strategy, 1, expected[-1], 5)
    assert rates == pytest.approx(expected)
    times = arrival_times(ramp_rates(strategy, 1, 100, 4000), 1.0, Random(0))
    assert times[1000] - times[0] > 2 * (times[4000 - 1] - times[3000 - 1])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--ramp-up-start-rps 1", "--ramp-up-start-rps"),
        ("--ramp-up-strategy linear --ramp-up-start-rps 1", "--ramp-up-end-rps"),
        (
            "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 --request-rate 3",
            "--request-rate",
        ),
        ("--header nothing", "--header"),
        ("--request-id-prefix \u00e4-", "--request-id-prefix"),
    ],
)
def test_wrong_options_are_refused_by_name(
    flags: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:1", *flags.split()]) == 2
    assert f"error: {named}" in capsys.readouterr().err


def test_logprobs_of_chats_are_two_fields() -> None:
    parser = argparse.ArgumentParser()
    add_request_options(parser)
    args = parser.parse_args(["--logprobs", "3"])
    args.backend = "openai-chat"
    fields = request_fields(args)
    assert (fields["logprobs"], fields["top_logprobs"]) == (True, 3)
