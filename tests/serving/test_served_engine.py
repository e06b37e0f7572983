"""The real thing: `engine serve scripted:` in a process of its own, called by OpenAI's client over a socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

TEXT = "line\nline é 🦊 <|im_end|>"
COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"
USER = [{"role": "user", "content": TEXT}]


def start(*flags):
    """Start a server on a free port; return the process and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", "scripted:", "--port", "0", "--max-model-len", "512", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("Serving scripted: on http://127.0.0.1:"):
        process.kill()
        raise AssertionError(f"the server said {line!r}")
    return process, line.split()[-1]


def stop(process):
    process.send_signal(signal.SIGTERM)
    status = process.wait(30)
    process.stdout.close()
    return status


@pytest.fixture(scope="module")
def url():
    process, url = start("--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
    yield url
    assert stop(process) == 0


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_model_is_listed(client):
    (model,) = client.models.list().data
    assert model.id == "scripted:"


def test_chat_answers_with_the_message(client):
    answer = client.chat.completions.create(model="scripted:", messages=USER)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"


def test_chat_streams_the_same_text(client):
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
    answer = client.completions.create(model="scripted:", prompt="abc", logprobs=2, max_tokens=10, echo=True)
    choice = answer.choices[0]
    assert choice.text == "abcabc"
    assert choice.logprobs.tokens[:6] == list("abcabc")
    assert all(value == pytest.approx(0, abs=1e-6) for value in choice.logprobs.token_logprobs[3:])


def test_repeated_prompt_comes_from_the_cache(client):
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
def test_bad_request_beside_a_running_stream_leaves_it_alone(client, url, fields, param):
    def neighbour():
        return client.completions.create(model="scripted:", prompt="neighbour " * 12, max_tokens=200).choices[0].text

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(neighbour)
        reply = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 4, **fields})
        assert running.result() == "neighbour " * 12
    if param is None:
        assert reply.status_code in (200, 400)
    else:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_leaving_clients_leave_nothing_behind(url):
    for _ in range(10):
        with httpx.stream(
            "POST", f"{url}/v1/completions", json={"prompt": "x" * 200, "max_tokens": 250, "stream": True}
        ) as reply:
            next(reply.iter_lines())
    with httpx.Client(base_url=url) as http:
        for _ in range(100):
            health = http.get("/health").json()
            if health["running"] == 0 and health["open_requests"] == 0:
                break
        assert (health["running"], health["open_requests"]) == (0, 0)


def test_metrics_count_tokens(url):
    text = httpx.get(f"{url}/metrics").text
    counted = next(line for line in text.splitlines() if line.startswith("engine_generation_tokens_total"))
    assert float(counted.split()[-1]) > 0


def test_tokenize_and_back(url):
    tokens = httpx.post(f"{url}/tokenize", json={"messages": USER}).json()["tokens"]
    assert TEXT.split("<")[0] in httpx.post(f"{url}/detokenize", json={"tokens": tokens}).json()["prompt"]


def test_sigterm_lets_open_streams_finish():
    process, url = start("--scripted-tokens-per-second", "100")

    def stream(begun):
        body = {"prompt": "0123456789" * 5, "max_tokens": 100, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            first = next(lines)
            begun.release()
            return [first, *lines]

    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(5) as pool:
        streams = [pool.submit(stream, begun) for _ in range(5)]
        for _ in streams:
            begun.acquire(timeout=30)
        status = stop(process)
        texts = [_text(done.result()) for done in streams]
    assert texts == ["0123456789" * 5] * 5
    assert status == 0


def test_new_requests_are_refused_while_open_ones_finish_and_the_second_signal_cuts_them():
    process, url = start("--scripted-tokens-per-second", "20")
    body = {"prompt": "0123456789" * 30, "max_tokens": 300, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as reply:
        lines = reply.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        for _ in range(100):  # until the signal has arrived
            refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
            if refused.status_code == 503:
                break
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "draining"
    assert stop(process) == 0


def _text(lines):
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
