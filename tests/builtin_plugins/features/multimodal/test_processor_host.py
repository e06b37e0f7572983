"""The input processor's process is killed: its prompt fails by name, the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from PIL import Image

from builtin_plugins.features.multimodal.messages import Prepare
from builtin_plugins.features.multimodal.pixels import raw_item
from builtin_plugins.features.multimodal.processor_host import ProcessorHost
from core.api import RequestFailed
from core.frontend.startup import load_from_kwargs
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ProcessorHost]:
    MODELS["llava"].make(tmp_path)
    made = ProcessorHost(*load_from_kwargs({"model": str(tmp_path)}), 1 << 20)
    made.wait_until_ready()
    yield made
    made.close()
    assert not Path(made.folder).exists()


def prompt(name: str, size: int = 8) -> Prepare:
    item = raw_item("image", Image.new("RGB", (size, size), "red"), "image", None)
    return Prepare(0, [item], {}, "", name, text="<image>")


def wait_until(is_true: Callable[[], Any]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_prompt_in_work_fails_and_waiting_ones_go_on(host: ProcessorHost) -> None:
    large = host.submit(prompt("large", 6000))
    waiting = host.submit(prompt("waiting"))
    wait_until(lambda: host._begun is not None)
    host._state.child.kill()
    with pytest.raises(RequestFailed, match="ended the input processor"):
        large.result(TIMEOUT_S)
    assert waiting.result(TIMEOUT_S).items[0].num_tokens == 16


def test_a_prompt_after_the_kill_is_answered_by_the_next_process(host: ProcessorHost) -> None:
    host._state.child.kill()
    assert host.submit(prompt("next")).result(TIMEOUT_S).text == "<image>" * 16


def test_items_of_a_cancelled_prompt_are_released(host: ProcessorHost) -> None:
    future = host.submit(prompt("left"))
    future.cancel()
    host.submit(prompt("other")).result(TIMEOUT_S)
    wait_until(lambda: [path.name for path in Path(host.folder, "pending").iterdir()] == ["other"])
