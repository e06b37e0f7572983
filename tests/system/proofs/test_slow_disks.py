"""What the engine writes to may be slow without end: requests go on, and nothing is restarted."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.testing.checkpoints import make_checkpoint
from tests.served import COLD
from tests.system.proofs.held_disk import HeldDisk, held_disk
from tests.system.proofs.test_api_death import COMMAND, Service, body, serving, wait_for
from tests.system.proofs.test_drains import FAST
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)],
    ids=["SIGTERM", "SIGINT", "SIGTERM twice"],
)
def test_server_ends_while_all_its_disks_are_stuck(
    tmp_path: Path, held_disk: HeldDisk, signals: tuple[signal.Signals, ...]
) -> None:
    llama = str(make_checkpoint("LlamaForCausalLM", tmp_path / "llama"))
    plugin = tmp_path / "fast.py"
    plugin.write_text(FAST)
    names = {name: str(held_disk.folder / name) for name in ("disk", "shared", "journal", "store")}
    tiers = [
        {"kv_connector": "disk", "kv_connector_extra_config": {"folder": names["disk"]}},
        {
            "kv_connector": "shared_storage",
            "kv_connector_extra_config": {"shared_storage_path": names["shared"]},
        },
    ]
    transfer = {
        "kv_connector": "multi",
        "timeout_s": 2.0,
        "kv_connector_extra_config": {"connectors": tiers},
    }
    bound = "1" if len(signals) == 1 else "3000"
    with (
        serving(
            tmp_path,
            llama,
            *("--kv-transfer-config", json.dumps(transfer), "--journal", names["journal"]),
            *("--responses-store", names["store"], "--block-size", "16", "--dtype", "float32"),
            *("--shutdown-timeout", bound, "--plugins", str(plugin)),
        ) as service,
        httpx.Client(base_url=service.url, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        made = client.post("/v1/responses", json={"input": "a", "max_output_tokens": 4})
        assert made.status_code == 200, made.text
        held_disk.hold()

        def create() -> None:
            with suppress(httpx.TransportError):
                client.post("/v1/responses", json={"input": "b", "max_output_tokens": 4})

        threads.submit(create)
        threads.submit(answer, service, 1)
        wait_for(lambda: {name.partition("-")[0] for name in held_disk.waited_for()} >= {*names})
        for number in signals:
            service.process.send_signal(number)
            wait_for(lambda: not service.is_ready())
        assert service.process.wait(TIMEOUT_S) == 0


@pytest.mark.slow
def test_server_ends_while_its_log_file_is_stuck(tmp_path: Path, held_disk: HeldDisk) -> None:
    plugin = tmp_path / "fast.py"
    plugin.write_text(FAST)
    (tmp_path / "log").symlink_to(held_disk.folder / "log")
    bound = ("--shutdown-timeout", "1", "--plugins", str(plugin))
    with (
        serving(tmp_path, "scripted:", *bound, "--enable-log-requests", status=1) as service,
        ThreadPoolExecutor(1) as thread,
    ):
        held_disk.hold()
        thread.submit(answer, service, 1)
        wait_for(held_disk.num_waits)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(TIMEOUT_S) == 1


@pytest.mark.slow
def test_parent_ends_while_its_log_file_is_stuck_and_its_api_process_is_dead(
    tmp_path: Path, held_disk: HeldDisk
) -> None:
    (tmp_path / "log").symlink_to(held_disk.folder / "log")
    with serving(tmp_path, "scripted:", "--shutdown-timeout", "1", status=None) as service:
        held_disk.hold()
        (api,) = (pid for pid, name in service.below().items() if name == "engine-api")
        os.kill(api, signal.SIGKILL)
        wait_for(held_disk.num_waits)
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(TIMEOUT_S)


def fill(pipe: int) -> None:
    """Fill a pipe, over a descriptor that does not wait and is not shared."""
    descriptor = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"x")
    os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_ends_while_its_log_pipe_is_full(tmp_path: Path, number: signal.Signals) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    flags = ["scripted:", "--port", "0", "--max-model-len", "64", *COLD, "--enable-log-requests"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("Serving ")
        fill(writer)
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(reader)
        os.close(writer)


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
