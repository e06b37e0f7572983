"""`engine serve scripted:` in a separate process, with OpenAI's client over a socket."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import openai
import pytest

from tests.served import COLD
from tests.timeouts import TIMEOUT_S

TEXT = "line\nline é 🦊 <|im_end|>"
COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"
USER = [{"role": "user", "content": TEXT}]
get = partial(httpx.get, timeout=TIMEOUT_S)
post = partial(httpx.post, timeout=TIMEOUT_S)


def start(*flags, stderr=None):
    """Start a server on a free port; return the process and its URL."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            COMMAND,
            "serve",
            "scripted:",
            "--port",
            "0",
            "--max-model-len",
            "512",
            *COLD,
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("Serving scripted: on http://127.0.0.1:"):
        process.kill()
        raise AssertionError(f"the server log_text {line!r}")
    return process, line.split()[-1]


def stop(process):
    process.send_signal(signal.SIGTERM)
    status = process.wait(TIMEOUT_S)
    process.stdout.close()
    return status


def wait_until_idle(url):
    """Wait until no request is open and no block is in use."""
    until_s = time.monotonic() + TIMEOUT_S
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "requests_open")
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
        while True:
            lines = http.get("/metrics").text.splitlines()
            gauges = {
                name: next(line for line in lines if line.startswith(f"engine_{name}{{"))
                for name in names
            }
            if all(line.endswith(" 0.0") for line in gauges.values()):
                return
            assert time.monotonic() < until_s, gauges
            time.sleep(0.01)


def until_refused(url):
    """Send requests until one is rejected: the signal has arrived."""
    until_s = time.monotonic() + TIMEOUT_S
    while (
        reply := post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 1})
    ).status_code != 503:
        assert time.monotonic() < until_s
    return reply


@pytest.fixture(scope="module")
def url():
    process, url = start("--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
    yield url
    assert stop(process) == 0


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


def test_served_model_is_listed(client):
    (model,) = client.models.list().data
    assert model.id == "scripted:"


def test_chat_returns_message(client):
    answer = client.chat.completions.create(model="scripted:", messages=USER)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"


def test_chat_stream_matches_whole_answer(client):
    stream = client.chat.completions.create(
        model="scripted:", messages=USER, stream=True, n=2, stream_options={"include_usage": True}
    )
    texts = ["", ""]
    usage = None
    for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [TEXT, TEXT]
    assert usage is not None
    assert usage.completion_tokens > len(TEXT)


def test_completion_logprobs_match_the_text(client):
    answer = client.completions.create(
        model="scripted:", prompt="abc", logprobs=2, max_tokens=10, echo=True
    )
    choice = answer.choices[0]
    assert choice.text == "abcabc"
    assert choice.logprobs.tokens[:6] == list("abcabc")
    assert all(value == pytest.approx(0, abs=1e-6) for value in choice.logprobs.token_logprobs[3:])


def test_repeated_prompt_hits_prefix_cache(client):
    prompt = "a prompt of more than one block " * 4
    first = client.completions.create(model="scripted:", prompt=prompt, max_tokens=1)
    second = client.completions.create(model="scripted:", prompt=prompt, max_tokens=1)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    salted = client.completions.create(
        model="scripted:", prompt=prompt, max_tokens=1, extra_body={"cache_salt": "mine"}
    )
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [100_000]}, "stop_token_ids"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"allowed_token_ids": [100_000]}, "allowed_token_ids"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "x" * 2000}, "prompt"),
        ({"logprobs": 1000}, "logprobs"),
        ({"truncate_prompt_tokens": 10_000}, "truncate_prompt_tokens"),
        ({"top_k": 2**62}, None),
        ({"min_tokens": 2**62, "max_tokens": None}, None),
        ({"seed": -(2**63)}, None),
    ],
)
def test_bad_request_does_not_disturb_running_stream(client, url, fields, param):
    def neighbour():
        return (
            client.completions.create(model="scripted:", prompt="neighbour " * 12, max_tokens=200)
            .choices[0]
            .text
        )

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(neighbour)
        reply = post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 4, **fields})
        assert running.result() == "neighbour " * 12
    if param is None:
        assert reply.status_code in (200, 400)
    else:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_disconnects_leak_nothing(url):
    for _ in range(10):
        with httpx.stream(
            "POST",
            f"{url}/v1/completions",
            json={"prompt": "x" * 200, "max_tokens": 250, "stream": True},
            timeout=TIMEOUT_S,
        ) as reply:
            next(reply.iter_lines())
    wait_until_idle(url)


def test_metrics_count_tokens(url):
    text = get(f"{url}/metrics").text
    counted = next(
        line for line in text.splitlines() if line.startswith("engine_generation_tokens_total")
    )
    assert float(counted.split()[-1]) > 0


def test_tokenize_detokenize_round_trip(url):
    tokens = post(f"{url}/tokenize", json={"messages": USER}).json()["tokens"]
    assert TEXT.split("<")[0] in post(f"{url}/detokenize", json={"tokens": tokens}).json()["prompt"]


def test_thousand_random_disconnects_leak_nothing(url):
    draw = random.Random(3)

    def leave(wait_s, stream):
        host, _, port = url.rpartition("//")[2].partition(":")
        body = json.dumps({"prompt": "x" * 200, "max_tokens": 250, "stream": stream}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}"
        )
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            if wait_s:
                connection.settimeout(wait_s)
                with contextlib.suppress(TimeoutError):
                    connection.recv(100)

    with ThreadPoolExecutor(16) as pool:
        moments = [(draw.choice([0, 0.01, 0.05, 0.2]), draw.random() < 0.5) for _ in range(1000)]
        list(pool.map(lambda moment: leave(*moment), moments))
    wait_until_idle(url)


def test_sigterm_finishes_hundred_open_streams():
    process, url = start("--scripted-tokens-per-second", "20", "--disable-uvicorn-access-log")
    text = "0123456789" * 5

    def stream(begun):
        body = {"prompt": text, "max_tokens": 100, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=TIMEOUT_S) as reply:
            lines = reply.iter_lines()
            first = next(lines)
            begun.release()
            return [first, *lines]

    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(100) as pool:
        streams = [pool.submit(stream, begun) for _ in range(100)]
        for _ in streams:
            assert begun.acquire(timeout=TIMEOUT_S)
        process.send_signal(signal.SIGTERM)
        refused = until_refused(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        ready = get(f"{url}/readyz")
        health = get(f"{url}/health")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert (health.status_code, health.json()["open_requests"]) == (200, 100)
        texts = [_text(done.result()) for done in streams]
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()
    assert texts == [text] * 100


def test_json_logs_of_all_processes():
    process, url = start("--log-format", "json", "--enable-log-requests", stderr=subprocess.PIPE)
    post(
        f"{url}/v1/completions", json={"prompt": "a secret", "max_tokens": 3, "request_id": "mine"}
    )
    get(f"{url}/readyz")
    process.send_signal(signal.SIGTERM)
    _, log_text = process.communicate(timeout=TIMEOUT_S)
    lines = [json.loads(line) for line in log_text.splitlines()]
    assert {"main", "engine"} <= {line["process"] for line in lines}
    assert any(line["logger"] == "uvicorn.access" for line in lines)
    (request,) = [line for line in lines if line["message"].startswith("request cmpl-mine")]
    assert ": length, " in request["message"]
    assert request["request_id"].startswith("cmpl-mine")
    assert "secret" not in log_text
    assert "/readyz" not in log_text


def test_drain_rejects_new_requests_and_second_signal_aborts():
    process, url = start("--scripted-tokens-per-second", "20")
    body = {"prompt": "0123456789" * 30, "max_tokens": 300, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=TIMEOUT_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        refused = until_refused(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "draining"
    assert stop(process) == 0


def _text(lines):
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
