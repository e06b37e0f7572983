"""`demo:vision`: its files, its answers about unseen pictures, and text as without the tower."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.model_sources.demo.architecture import spec
from builtin_plugins.model_sources.demo.loader import FILE, DemoVisionLoader
from builtin_plugins.model_sources.demo.plugin import VISION, VISION_NAME, engine_find_model
from core import LLM
from core.api import ModelError
from examples.demo_model.chat import TEMPLATE
from examples.demo_model.evaluate import answers as text_answers
from examples.demo_model.items import Draw, held_out
from examples.demo_model.mix import SKILLS, evaluation_items
from examples.demo_model.vision import train
from examples.demo_model.vision.evaluate import answers, score, unseen
from examples.demo_model.vision.export import UNUSED
from examples.demo_model.vision.labels import LABELS, labels
from examples.demo_model.vision.questions import ask
from examples.demo_model.vision.scenes import KINDS, SIZE, make_picture, make_scene
from examples.demo_model.vision.task import IMAGE

LARGEST = 4_000_000
PICTURES = 50
TARGET = 0.95
SLACK = 0.05
"""Share by which a small sample may miss the target."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(VISION_NAME, dtype="float32", max_model_len=1024, num_threads=1) as made:
        yield made


def test_tower_adds_at_most_four_megabytes():
    assert sum(path.stat().st_size for path in VISION.iterdir()) <= LARGEST


def test_settings_and_tokens_are_those_of_the_text_model(demo_folder):
    own, text = (
        json.loads((folder / "config.json").read_text()) for folder in (VISION, demo_folder)
    )
    assert own["text_config"] == text
    assert (VISION / "chat_template.jinja").read_text() == TEMPLATE.read_text().rstrip("\n")
    before, after = (
        json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        for folder in (demo_folder, VISION)
    )
    assert {**after, UNUSED: after[IMAGE]} == {**before, IMAGE: before[UNUSED]}


def test_loader_yields_the_tensors_of_both_files(llm, demo_folder):
    source = engine_find_model(VISION_NAME, llm.config)
    assert source.weight_loader == "demo_vision"
    loader = DemoVisionLoader(source, llm.config)
    headers = dict(loader.headers())
    assert {name: (t.shape, t.dtype) for name, t in loader.tensors()} == {
        name: (t.shape, t.dtype) for name, t in headers.items()
    }
    assert any(name.startswith("model.layers.") for name in headers)
    assert any(name.startswith("vision.transformer.") for name in headers)
    assert loader.total_bytes() == sum(
        (folder / FILE).stat().st_size for folder in (VISION, demo_folder)
    )


def test_answers_about_unseen_pictures_are_exact(llm):
    examples = unseen(seed=1, count=PICTURES)
    good, count = map(sum, zip(*score(examples, answers(llm, examples)).values(), strict=True))
    assert good / count >= TARGET - SLACK


def test_text_answers_equal_those_without_the_tower(llm, demo_llm):
    items = [item for skill in SKILLS for item in evaluation_items(skill, seed=3, count=2)]
    assert text_answers(llm, items) == text_answers(demo_llm, items)


@pytest.mark.parametrize("kind", KINDS)
def test_scenes_are_split_by_what_they_show(kind):
    for evaluation in (True, False):
        draw = Draw(random.Random(kind), evaluation)
        scenes = [make_scene(draw, kind) for _ in range(40)]
        assert {held_out(scene.key()) for scene in scenes} == {evaluation}


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_questions_are_functions_of_the_seed(kind):
    first, second = (Draw(random.Random(7), evaluation=False) for _ in range(2))
    for _ in range(20):
        one, other = (make_picture(draw, kind) for draw in (first, second))
        assert one.scene == other.scene
        assert one.image.size == (SIZE, SIZE)
        assert one.image.tobytes() == other.image.tobytes()
        assert ask(first, one.scene) == ask(second, other.scene)
        assert all(value in LABELS[name] for name, value in labels(one.scene).items())


def test_loader_and_tower_refuse_damaged_files_by_name(llm, tmp_path):
    source = replace(engine_find_model(VISION_NAME, llm.config), path=str(tmp_path))
    (tmp_path / FILE).write_bytes(b"\x00" * 20)
    with pytest.raises(ModelError, match=FILE):
        list(DemoVisionLoader(source, llm.config).tensors())
    context = SimpleNamespace(dtype=torch.float32, device="cpu")
    tower = spec(source.hf_config).tower.build(context)
    tensors = load_file(VISION / FILE)
    tower.load_weights(tensors)
    with pytest.raises(ModelError, match=r"vision\.soft_tokens\.gain: got shape None"):
        tower.load_weights({name: t for name, t in tensors.items() if "gain" not in name})


@pytest.mark.slow
def test_training_writes_the_shipped_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train", "--smoke", "--out", str(tmp_path)])
    train.main()
    for path in VISION.iterdir():
        made = tmp_path / "model" / path.name
        if path.suffix == ".json":
            assert json.loads(made.read_text()) == json.loads(path.read_text())
    shapes = [
        {name: (t.shape, t.dtype) for name, t in load_file(folder / FILE).items()}
        for folder in (VISION, tmp_path / "model")
    ]
    assert shapes[0] == shapes[1]
