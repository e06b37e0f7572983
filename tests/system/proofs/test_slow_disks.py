"""What the engine writes to may be slow without end: requests go on, and nothing is restarted."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.testing.checkpoints import make_checkpoint
from tests.served import COLD
from tests.system.proofs.held_disk import HeldDisk, held_disk
from tests.system.proofs.test_api_death import COMMAND, Service, body, serving, wait_for
from tests.timeouts import TIMEOUT_S

__all__ = ["held_disk"]


def answer(service: Service, i: int) -> Any:
    reply = httpx.post(f"{service.url}/v1/completions", json=body(i), timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


@pytest.mark.slow
def test_requests_go_on_while_journal_and_disk_tier_are_stuck(
    tmp_path: Path, held_disk: HeldDisk
) -> None:
    llama = str(make_checkpoint("LlamaForCausalLM", tmp_path / "llama"))
    extra = {"folder": str(held_disk.folder / "blocks")}
    transfer = {"kv_connector": "disk", "kv_connector_extra_config": extra}
    flags = ("--kv-transfer-config", json.dumps(transfer), "--dtype", "float32")
    journal = held_disk.folder / "journal"
    with serving(
        tmp_path, llama, *flags, "--journal", str(journal), "--block-size", "16"
    ) as service:
        expected = [answer(service, i) for i in range(8)]
        held_disk.hold()
        new = [answer(service, i + 30) for i in range(8)]
        wait_for(lambda: held_disk.num_waits() >= 2)  # journal and disk tier
        size = journal.stat().st_size
        assert [answer(service, i) for i in range(8)] == expected
        assert journal.stat().st_size == size
        assert service.metric("engine_restarts_total") == 0
        held_disk.release()
        wait_for(lambda: journal.stat().st_size > size)
        assert [answer(service, i + 30) for i in range(8)] == new
        assert "--journal ends here" not in service.log()


@pytest.mark.slow
def test_requests_go_on_while_the_response_store_is_stuck(
    tmp_path: Path, held_disk: HeldDisk
) -> None:
    with (
        serving(
            tmp_path, "scripted:", "--responses-store", str(held_disk.folder / "store")
        ) as service,
        httpx.Client(base_url=service.url, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(1) as thread,
    ):

        def create() -> dict[str, Any]:
            made = client.post("/v1/responses", json={"input": "a", "max_output_tokens": 4})
            assert made.status_code == 200, made.text
            response: dict[str, Any] = made.json()
            return response

        first = create()
        assert first["store"] is True
        held_disk.hold()
        creation = thread.submit(create)
        wait_for(held_disk.num_waits)
        for _ in range(20):
            request = {"prompt": "ab", "max_tokens": 20}
            assert client.post("/v1/completions", json=request).status_code == 200
        made = creation.result()
        assert (made["store"], made["output"] != []) == (False, True)
        read = client.get(f"/v1/responses/{first['id']}")
        assert (read.status_code, int(read.headers["retry-after"]) > 0) == (503, True)
        held_disk.release()
        wait_for(lambda: client.get(f"/v1/responses/{first['id']}").status_code == 200)
        assert client.get(f"/v1/responses/{made['id']}").status_code == 404
        wait_for(lambda: create()["store"])
        assert client.get("/health").json()["server_restarts"] == 0


def test_log_pipe_that_is_not_read_delays_no_request(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(reader, False)
    flags = ["scripted:", "--port", "0", "--max-model-len", "64", *COLD, "--enable-log-requests"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )
    os.close(writer)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        request = {"prompt": "ab", "max_tokens": 2}

        def send() -> None:
            reply = httpx.post(f"{url}/v1/completions", json=request, timeout=TIMEOUT_S)
            assert reply.status_code == 200

        for _ in range(60):  # each of them is several lines
            send()
        text = os.read(reader, 1 << 16)
        assert 0 < len(text) <= 4096
        while b"standard error was not read" not in text:
            send()
            text += os.read(reader, 1 << 16)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(reader)
