"""The process of the input processor: content hashes, the store as cache, errors by field."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("PIL", reason="Pillow is not installed")

from PIL import Image

from builtin_plugins.features.multimodal.client_tensors import ClientTensor
from builtin_plugins.features.multimodal.messages import (
    EMBEDDINGS_MODE,
    Prepare,
    Prepared,
    RawItem,
)
from builtin_plugins.features.multimodal.pixels import raw_item
from builtin_plugins.features.multimodal.processor_process import ProcessorWorker
from builtin_plugins.features.multimodal.store import TensorStore
from builtin_plugins.input_processors.api import (
    ITEM,
    InputProcessor,
    ProcessedItem,
    expand_ids,
    expand_text,
)
from core.api import InvalidRequest

IMAGE = "<image>"


class Counting(InputProcessor):
    """An input processor with one token for each row of pixels."""

    identity = "counting"

    def __init__(self) -> None:
        self.placeholders = {"image": IMAGE}
        self.calls = 0

    def process(self, modality: str, content: Any, kwargs: Any) -> ProcessedItem:
        self.calls += 1
        if kwargs.get("broken"):
            raise RuntimeError("a fault of the plugin")
        if content.width == 13:
            raise InvalidRequest(ITEM, "got 13 columns; expected another number.")
        pixels = torch.frombuffer(bytearray(content.tobytes()), dtype=torch.uint8)
        return ProcessedItem(modality, IMAGE * content.height, content.height, {"p": pixels})

    def expand(self, prompt: Any, items: Any) -> Any:
        return expand_text(prompt, items, self.placeholders, re.compile(IMAGE))

    def expand_ids(self, token_ids: Any, items: Any) -> list[int]:
        return expand_ids(token_ids, [(i, [7] * i.num_tokens) for i in items], {"image": 7})


@pytest.fixture
def worker(tmp_path: Path) -> ProcessorWorker:
    store = TensorStore(str(tmp_path), 1 << 20)
    store.open()
    config: Any = SimpleNamespace(options={})
    return ProcessorWorker(config, Counting(), store)


def picture(colour: str = "red", size: tuple[int, int] = (4, 3)) -> Image.Image:
    return Image.new("RGB", size, colour)


def prepare(worker: ProcessorWorker, *images: Any, **fields: Any) -> Prepared:
    items = [
        image if isinstance(image, RawItem) else raw_item("image", image, f"image[{i}]", None)
        for i, image in enumerate(images)
    ]
    given = {"text": f"a{IMAGE * len(images)}", "kwargs": {}, "tenant": "", "holder": "h"}
    return worker.answer(Prepare(number=1, items=items, **{**given, **fields}))


def named(uuid: str, image: Image.Image | None = None) -> RawItem:
    return raw_item("image", image, "image[0]", uuid)


def hashes(answer: Prepared) -> list[bytes]:
    assert answer.error == ""
    return [item.content_hash for item in answer.items]


def test_equal_images_are_processed_once(worker: ProcessorWorker) -> None:
    first = prepare(worker, picture(), picture("blue"), picture())
    assert [item.num_tokens for item in first.items] == [3, 3, 3]
    assert [item.was_known for item in first.items] == [False, False, True]
    assert first.text == "a" + IMAGE * 9
    again = prepare(worker, picture("blue"))
    assert hashes(first) == [hashes(first)[0], *hashes(again), hashes(first)[0]]
    assert [item.was_known for item in again.items] == [True]
    assert worker._processor.calls == 2


def test_processor_may_return_token_ids(
    worker: ProcessorWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "expand", lambda self, prompt, items: [len(prompt), len(items)])
    answer = prepare(worker, picture())
    assert answer.error == ""
    assert answer.text is None
    assert list(answer.token_ids) == [len(f"a{IMAGE}"), 1]


def encoded(image: Image.Image, form: str = "PNG") -> RawItem:
    file = io.BytesIO()
    image.save(file, form)
    return raw_item("image", file.getvalue(), "image[0]", None)


def test_a_known_file_is_decoded_once(
    worker: ProcessorWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    decode = ProcessorWorker._image

    def counting(self: ProcessorWorker, raw: RawItem) -> Any:
        decoded.append(raw.data)
        return decode(self, raw)

    monkeypatch.setattr(ProcessorWorker, "_image", counting)
    first = prepare(worker, encoded(picture()))
    assert hashes(prepare(worker, encoded(picture()))) == hashes(first)
    assert len(decoded) == 1
    assert hashes(prepare(worker, encoded(picture(), "BMP"))) == hashes(first)
    assert len(decoded) == 2, "another file of the same content"
    assert worker._processor.calls == 1
    assert hashes(prepare(worker, encoded(picture()), kwargs={"max_pixels": 4})) != hashes(first)


def test_content_hash_depends_on_all_that_tensors_depend_on(worker: ProcessorWorker) -> None:
    answers = [
        prepare(worker, picture()),
        prepare(worker, picture("blue")),
        prepare(worker, picture(size=(3, 4))),
        prepare(worker, picture(), kwargs={"max_pixels": 4}),
    ]
    worker._processor.identity = "another version"
    answers.append(prepare(worker, picture()))
    found = [hashes(answer)[0] for answer in answers]
    assert len(set(found)) == len(found)
    assert all(len(each) == 32 for each in found)


def test_uuid_names_content_of_its_own_tenant_alone(worker: ProcessorWorker) -> None:
    first = prepare(worker, named("cat", picture()), tenant="one")
    assert hashes(prepare(worker, named("cat"), tenant="one")) == hashes(first)
    unknown = prepare(worker, named("cat"), tenant="two")
    assert unknown.error_field == "image[0]"
    assert "uuid 'cat' of no known content" in unknown.error
    other = prepare(worker, named("cat", picture("blue")), tenant="two")
    assert hashes(other) != hashes(first)


def test_tensors_are_held_for_the_request(worker: ProcessorWorker, tmp_path: Path) -> None:
    (key,) = hashes(prepare(worker, picture(), holder="request-1"))
    store = TensorStore(str(tmp_path))
    store.adopt("request-1")
    found = store.read("request-1", key)
    assert found["p"].tolist() == [255, 0, 0] * 12


def test_spelled_placeholders_of_conversations_are_no_placeholders(
    worker: ProcessorWorker,
) -> None:
    text = f"say {IMAGE} {IMAGE}"
    spans = [(len(text) - len(IMAGE), len(text))]
    answer = prepare(worker, picture(), text=text, control_spans=spans)
    assert answer.text == f"say {IMAGE} {IMAGE * 3}"
    assert len(answer.control_spans) == 3


def test_ids_are_expanded_without_a_text(worker: ProcessorWorker) -> None:
    answer = prepare(worker, picture(), text=None, token_ids=[1, 7, 2])
    assert answer.token_ids == [1, 7, 7, 7, 2]


def test_embeddings_are_refused_where_the_processor_places_none(worker: ProcessorWorker) -> None:
    tensor = ClientTensor("float32", (2, 1), bytes(8))
    data = msgspec.msgpack.encode({"image_embeds": tensor})
    answer = prepare(worker, RawItem("image", "image[0]", data, EMBEDDINGS_MODE))
    assert answer.error_field == "image[0]"
    assert "got embeddings; expected an image" in answer.error


def test_prompt_of_a_processor_that_completes_prompts_is_complete(
    worker: ProcessorWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not prepare(worker, picture()).is_complete
    monkeypatch.setattr(Counting, "completes_prompts", True)
    assert prepare(worker, picture()).is_complete


def test_errors_name_the_field(worker: ProcessorWorker) -> None:
    cases = [
        (prepare(worker, picture(), text="no place"), "prompt", "0 placeholders"),
        (prepare(worker, picture(), picture(size=(13, 3))), "image[1]", "13 columns"),
        (prepare(worker, b"no image"), "image[0]", "expected"),
        (prepare(worker, picture(), kwargs={"broken": True}), "image[0]", "RuntimeError"),
    ]
    for answer, field, words in cases:
        assert answer.error_field == field
        assert words in answer.error
    assert hashes(prepare(worker, picture()))
