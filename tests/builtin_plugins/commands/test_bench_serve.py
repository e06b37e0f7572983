"""`engine bench serve` against the scripted model, and against misbehaving servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.api import FlexibleArgumentParser, bench_serve
from core.cli.main import main
from tests.served import COLD
from tests.timeouts import TIMEOUT_S

COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"
CHUNKS_PER_SECOND = 5000

Printed = pytest.CaptureFixture[str]


def words(text: str) -> list[str]:
    return text.split()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    flags = (
        "--port 0 --max-model-len 4096 --api-key sesame --log-level error "
        "--disable-uvicorn-access-log"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", "scripted:", *COLD, *flags.split()],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()


@pytest.fixture
def measure(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Run the benchmark against the scripted server and return its JSON."""
    monkeypatch.setenv("ENGINE_API_KEY", "sesame")

    def run(*argv: str) -> dict[str, Any]:
        file = tmp_path / "result.json"
        assert main(["bench", "serve", "--base-url", url, "--output-json", str(file), *argv]) == 0
        result: dict[str, Any] = json.loads(file.read_text())
        return result

    return run


def test_scripts_get_the_result(url: str) -> None:
    parser = FlexibleArgumentParser()
    bench_serve.add_cli_args(parser)
    flags = f"--base-url {url} --api_key sesame --num-prompts 2 --input-len 4 --output-len 4"
    result = bench_serve.main(parser.parse_args([*words(flags), "--num_warmups=0"]))
    assert (result["completed"], result["total_output_tokens"]) == (2, 8)


def test_result_uses_vllm_metric_names(measure: Callable[..., Any], capsys: Printed) -> None:
    result = measure(
        *words("--num-prompts 12 --input-len 20 --output-len 9 --goodput ttft:60000 e2el:60000")
    )
    assert (result["completed"], result["failed"]) == (12, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (240, 108)
    for name in (
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
        "duration",
    ):
        assert result[name] > 0
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for figure in ("mean", "median", "p90", "p99"):
            found = result[f"{figure}_{metric}_ms"]
            # On a busy machine an answer may be read whole, all its pieces at once.
            assert found > 0 or (metric in ("tpot", "itl") and found == 0)
    assert result["model_id"] == "scripted:"
    assert result["request_goodput"] == result["request_throughput"]
    printed = capsys.readouterr()
    assert "time to first token (ttft)" in printed.out
    assert printed.err == ""  # no progress bar without a terminal


def test_chat_prompts_have_the_requested_length(measure: Callable[..., Any]) -> None:
    flags = (
        "--backend openai-chat --num-prompts 4 --input-len 30 --output-len 5 "
        "--request-rate 200 --burstiness 2"
    )
    result = measure(*flags.split(), "--max-concurrency", "2", "--percentile-metrics", "ttft")
    assert result["total_output_tokens"] == 20
    template = result["total_input_tokens"] / 4 - 30  # the same around every message
    assert 0 < template < 20
    assert result["max_concurrent_requests"] <= 2
    assert "p99_itl_ms" not in result


def test_details_of_every_request_are_saved(
    measure: Callable[..., Any], tmp_path: Path, capsys: Printed
) -> None:
    flags = [
        "--num-prompts",
        "3",
        "--output-len",
        "4",
        "--save-detailed",
        "--result-dir",
        str(tmp_path),
    ]
    measure(*flags, "--result-filename", "saved.json", "--metadata", "machine=mine")
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert saved["machine"] == "mine"
    assert saved["output_lens"] == [4, 4, 4]
    assert [len(saved[name]) for name in ("ttfts", "itls", "start_times", "errors")] == [3, 3, 3, 3]
    assert all(saved["generated_texts"])
    assert "Saved as" in capsys.readouterr().out


def test_the_same_seed_sends_the_same_prompts(measure: Callable[..., Any], tmp_path: Path) -> None:
    flags = words(
        "--num-prompts 2 --input-len 8 --output-len 8 --save-detailed --result-filename a.json "
        "--seed 5"
    )
    texts = [measure(*flags, "--result-dir", str(tmp_path))["generated_texts"] for _ in range(2)]
    assert texts[0] == texts[1]  # the scripted model answers with its prompt


def test_rejected_request_reports_the_servers_reason(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setenv("ENGINE_API_KEY", "wrong")
    assert main(["bench", "serve", "--base-url", url, "--model", "scripted:"]) == 1
    assert "401" in capsys.readouterr().err


def test_unreachable_server(capsys: Printed) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert main(["bench", "serve", "--port", str(taken.getsockname()[1])]) == 1
    message = capsys.readouterr().err
    assert "nothing answers at http://127.0.0.1:" in message
    assert "`engine serve MODEL`" in message


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--request-rate", "0"], "--request-rate 0 is invalid"),
        (["--base-url", "ftp://x"], "--base-url 'ftp://x' is invalid"),
        (["--url", "ftp://x"], "--base-url 'ftp://x' is invalid"),
        (["--goodput", "ttft"], "give METRIC:MILLISECONDS"),
        (["--goodput", "speed:3"], "unknown metric 'speed'"),
        (["--percentile-metrics", "ttft,speed"], "unknown metric 'speed'"),
        (["--metric-percentiles", "101"], "a percentile is from 0 to 100"),
        (["--extra-body", "{"], "--extra-body {: not JSON"),
        (["--extra-body", "[]"], "give a JSON object"),
        (["--metadata", "x"], "give KEY=VALUE"),
        (["--result-dir", "nowhere"], "there is no such folder"),
    ],
)
def test_invalid_flags_are_rejected_before_sending(
    argv: list[str], message: str, capsys: Printed
) -> None:
    assert main(["bench", "serve", *argv]) == 2
    assert message in capsys.readouterr().err


# --- servers that misbehave ---

EVENT = 'data: {"choices": [{"text": "x"}]}\n\n'
DONE = "data: [DONE]\n\n"


@contextmanager
def server(answer: Callable[[int], bytes]) -> Iterator[str]:
    """A server that answers the n-th request with these bytes and closes the connection."""
    count = iter(range(1 << 30))
    ready = threading.Event()
    stop = asyncio.Event()
    port = 0
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        nonlocal port

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(answer(next(count)))
            writer.close()

        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        ready.set()
        async with listening:
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(TIMEOUT_S)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def stream(text: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{text}".encode()


def bench(url: str, tmp_path: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "result.json"
    flags = words(
        "--model m --num-prompts 4 --num-warmups 0 --max-concurrency 1 --input-len 3 --output-len 3"
    )
    status = main(["bench", "serve", "--base-url", url, "--output-json", str(file), *flags, *argv])
    return status, json.loads(file.read_text())


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (stream("overloaded", "503 Service Unavailable"), "status 503: overloaded"),
        (stream(EVENT), "the stream ended without [DONE]"),
        (
            stream('data: {"error": {"message": "broken"}}\n\n'),
            "in the stream: {'message': 'broken'}",
        ),
        (stream("data: {nonsense\n\n"), "JSON is malformed"),
        (stream(DONE), "no text received"),
        (b"SSH-2.0-hello\r\n\r\n", "not an HTTP response"),
        (b"", "the server closed the connection without a response"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda",
            "the connection was lost before the response was complete",
        ),
    ],
)
def test_failed_requests_are_counted_separately(
    bad: bytes, reason: str, tmp_path: Path, capsys: Printed
) -> None:
    # The first request is to /tokenize, which this server does not have.
    answers = [stream("", "404 Not Found"), bad, *[stream(EVENT * 3 + DONE)] * 3]
    with server(answers.__getitem__) as url:
        status, result = bench(url, tmp_path)
    assert (status, result["completed"], result["failed"]) == (0, 3, 1)
    assert result["total_output_tokens"] == 9  # no usage came: pieces are counted
    printed = capsys.readouterr().out
    assert "This server has no /tokenize" in printed
    assert f"Failed: {reason}" in printed


def test_usage_overrides_chunk_count(tmp_path: Path) -> None:
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 30}}\r\n\r\n'
    with server(lambda n: stream(EVENT * 3 + usage + DONE)) as url:
        _, result = bench(url, tmp_path)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (44, 120)


def test_all_requests_failed_exits_1(tmp_path: Path) -> None:
    with server(lambda n: stream("no", "500 Oops")) as url:
        status, result = bench(url, tmp_path)
    assert (status, result["completed"], result["failed"]) == (1, 0, 4)


def test_failed_warmup_ends_the_run(capsys: Printed) -> None:
    with server(lambda n: stream("no such endpoint", "404 Not Found")) as url:
        assert main(["bench", "serve", "--base-url", url, "--model", "m"]) == 1
    assert "failed: status 404: no such endpoint" in capsys.readouterr().err


def test_ready_check_waits_for_the_server(tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    flags = words("--scripted-max-model-len 512 --log-level error --disable-uvicorn-access-log")
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            COMMAND,
            "serve",
            "scripted:",
            "--port",
            str(port),
            *COLD,
            *flags,
        ],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        sizes = words("--num-prompts 2 --input-len 5 --output-len 5")
        patience = ["--ready-check-timeout-sec", f"{TIMEOUT_S:g}"]
        assert main(["bench", "serve", "--port", str(port), *patience, *sizes]) == 0
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_client_is_faster_than_a_server(tmp_path: Path) -> None:
    """Measures CPU time per chunk: independent of other processes."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(EVENT), EVENT.encode()) for _ in range(3000))
    body += b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE.encode())
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    with server(lambda n: answer) as url:
        _, result = bench(
            url, tmp_path, "--tokenizer", str(_tokenizer(tmp_path)), "--output-len", "3000"
        )
    assert result["total_output_tokens"] == 12_000
    # The share is of both, this client and the server in a thread of its process: an upper bound.
    spent_s = result["client_cpu_share"] * result["duration"]
    assert 12_000 / spent_s > CHUNKS_PER_SECOND


def _tokenizer(tmp_path: Path) -> Path:
    from core.testing.checkpoints import make_checkpoint

    return make_checkpoint("LlamaForCausalLM", tmp_path / "model")
