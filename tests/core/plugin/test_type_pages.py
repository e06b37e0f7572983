"""Every public type, field and function has a docstring; facts match the code."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from builtin_plugins.platforms.cpu.platform import CpuPlatform
from builtin_plugins.platforms.cuda.platform import CudaPlatform
from core import api
from core.config import EngineConfig
from core.models.layers.loading import attention_facts
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import tiny_config
from core.testing.facts import FACTS, OF_ATTENTION, OF_PLATFORMS
from scripts.reference.attributes import attributes_of
from scripts.reference.glossary import GLOSSARY
from scripts.reference.json_settings import CLASSES
from scripts.reference.types import PACKAGES, apis_of_kinds, meaning, modules_of, public_of

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (api, *modules_of("core.api"), *apis_of_kinds())
    for name in module.__all__
    if hasattr(module, name)
}


def public() -> list[tuple[str, Any]]:
    library = [
        (f"{module.__name__}.{name}", item)
        for package in PACKAGES
        for module in modules_of(package)
        for name, item in public_of(module)
    ]
    return [*PUBLIC.items(), *library]


@pytest.mark.parametrize("owner", CLASSES.values(), ids=CLASSES)
def test_every_key_of_a_json_option_has_a_meaning(owner: type) -> None:
    assert [each.name for each in attributes_of(owner) if not each.text] == []


def test_public_classes_and_functions_have_docstrings() -> None:
    missing = [
        name
        for name, item in public()
        if (inspect.isclass(item) or inspect.isfunction(item))
        and not (inspect.getdoc(item) or "").strip()
    ]
    assert missing == []


def test_public_fields_have_docstrings() -> None:
    classes = {item for item in PUBLIC.values() if inspect.isclass(item)}
    missing = [
        f"{c.__name__}.{a.name}" for c in classes for a in attributes_of(c) if not meaning(c, a)
    ]
    assert sorted(missing) == []


def test_library_fields_have_docstrings() -> None:
    classes = {item for _, item in public() if inspect.isclass(item)}
    missing = [
        f"{c.__module__}.{c.__name__}.{a.name}"
        for c in classes
        for a in attributes_of(c)
        if not meaning(c, a)
    ]
    assert sorted(missing) == []


def test_glossary_words_exist_in_the_code() -> None:
    classes = {item for _, item in public() if inspect.isclass(item)}
    used = {
        key
        for c in classes
        for a in attributes_of(c)
        for key in (a.name, f"{c.__name__}.{a.name}", f"{c.__name__}.*")
    }
    assert sorted(set(GLOSSARY) - used) == []


def test_listed_facts_match_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    registry = load_plan(make_plan())
    llama = registry.load(registry.choose("models", "LlamaForCausalLM"))(
        tiny_config("LlamaForCausalLM")
    )
    assert set(attention_facts(llama, EngineConfig())) == set(OF_ATTENTION)
    assert {*CpuPlatform().facts(), *CudaPlatform().facts()} == set(OF_PLATFORMS)
    assert set(FACTS["attention_backends"]) == {*OF_PLATFORMS, "dtype", *OF_ATTENTION}
