"""What the engine writes to may be full, read-only or gone: requests go on without it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.testing.checkpoints import make_checkpoint
from tests.system.proofs.test_api_death import Service, body, serving, wait_for
from tests.timeouts import TIMEOUT_S


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def answer(service: Service, i: int) -> Any:
    reply = httpx.post(f"{service.url}/v1/completions", json=body(i), timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


def kill_engine(service: Service, restarts: int) -> None:
    os.kill(service.engine(), signal.SIGKILL)
    wait_for(
        lambda: service.metric("engine_restarts_total") == restarts and service.is_ready(),
    )


def test_restart_needs_neither_the_temporary_folder_nor_the_journals(
    tmp_path: Path, llama: str
) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    flags = ("--dtype", "float32", "--journal", str(journals / "journal"))
    with serving(tmp_path, llama, *flags) as service:
        expected = answer(service, 1)
        shutil.rmtree(journals)
        shutil.rmtree(tmp_path / "tmp")
        kill_engine(service, 1)
        assert answer(service, 1) == expected
        assert "--journal ends here" in service.log()
        (tmp_path / "tmp").mkdir()


@pytest.mark.slow
def test_full_disk_costs_blocks_and_journal_and_no_request(
    tmp_path: Path, llama: str, small_disk: Path
) -> None:
    extra = {"folder": str(small_disk / "blocks")}
    transfer = {"kv_connector": "disk", "kv_connector_extra_config": extra}
    flags = ("--kv-transfer-config", json.dumps(transfer), "--dtype", "float32")
    with serving(
        tmp_path, llama, *flags, "--journal", str(small_disk / "journal"), "--block-size", "16"
    ) as service:
        expected = [answer(service, i) for i in range(20)]
        while shutil.disk_usage(small_disk).free > 4096:
            for i in range(20):
                assert answer(service, i) == expected[i]
        wait_for(lambda: answer(service, 0) and "--journal ends here" in service.log())
        assert service.metric("engine_restarts_total") == 0
        kill_engine(service, 1)
        assert [answer(service, i) for i in range(20)] == expected


@pytest.mark.slow
def test_vanished_and_read_only_disks_cost_no_request(
    tmp_path: Path, llama: str, small_disk: Path
) -> None:
    extra = {"folder": str(small_disk / "blocks")}
    transfer = {"kv_connector": "disk", "kv_connector_extra_config": extra}
    flags = ("--kv-transfer-config", json.dumps(transfer), "--dtype", "float32")
    with serving(tmp_path, llama, *flags) as service:
        expected = [answer(service, i) for i in range(8)]
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        assert [answer(service, i + 30) is not None for i in range(8)] == [True] * 8
        assert [answer(service, i) for i in range(8)] == expected
        subprocess.run(["umount", "--lazy", str(small_disk)], check=True)
        assert [answer(service, i) for i in range(8)] == expected
        assert service.metric("engine_restarts_total") == 0
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(small_disk)], check=True)
        assert [answer(service, i) for i in range(8)] == expected
