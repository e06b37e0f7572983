"""Everything public says what it is: every type, every field, every function; and the facts listed
are those the code states.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from builtin_plugins.platforms.cpu.platform import CpuPlatform
from builtin_plugins.platforms.cuda.platform import CudaPlatform
from core import api
from core.config import EngineConfig
from core.contracts.facts import FACTS, OF_ATTENTION, OF_PLATFORMS
from core.models.layers.loading import attention_facts
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import tiny_config
from scripts.reference.attributes import attributes_of
from scripts.reference.glossary import GLOSSARY
from scripts.reference.types import ROOMS, meaning, modules_of, public_of

PROMISED = {name: getattr(api, name) for name in api.__all__}


def public() -> list[tuple[str, Any]]:
    rooms = [
        (f"{m.__name__}.{n}", item)
        for room in ROOMS
        for m in modules_of(room)
        for n, item in public_of(m)
    ]
    return [*((f"core.api.{name}", item) for name, item in PROMISED.items()), *rooms]


def test_every_public_class_and_function_says_what_it_is() -> None:
    silent = [
        name
        for name, item in public()
        if (inspect.isclass(item) or inspect.isfunction(item))
        and not (inspect.getdoc(item) or "").strip()
    ]
    assert silent == []


def test_every_field_that_is_promised_says_what_it_means() -> None:
    classes = {item for item in PROMISED.values() if inspect.isclass(item)}
    silent = [
        f"{c.__name__}.{a.name}" for c in classes for a in attributes_of(c) if not meaning(c, a)
    ]
    assert sorted(silent) == []


def test_every_field_of_the_rooms_says_what_it_means() -> None:
    classes = {item for _, item in public() if inspect.isclass(item)}
    silent = [
        f"{c.__module__}.{c.__name__}.{a.name}"
        for c in classes
        for a in attributes_of(c)
        if not meaning(c, a)
    ]
    assert sorted(silent) == []


def test_no_word_of_the_glossary_is_about_nothing() -> None:
    classes = {item for _, item in public() if inspect.isclass(item)}
    used = {
        key
        for c in classes
        for a in attributes_of(c)
        for key in (a.name, f"{c.__name__}.{a.name}", f"{c.__name__}.*")
    }
    assert sorted(set(GLOSSARY) - used) == []


def test_the_facts_listed_are_those_the_code_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    registry = load_plan(make_plan())
    llama = registry.load(registry.choose("models", "LlamaForCausalLM"))(
        tiny_config("LlamaForCausalLM")
    )
    assert set(attention_facts(llama, EngineConfig())) == set(OF_ATTENTION)
    assert {*CpuPlatform().facts(), *CudaPlatform().facts()} == set(OF_PLATFORMS)
    assert set(FACTS["attention_backends"]) == {*OF_PLATFORMS, "dtype", *OF_ATTENTION}
