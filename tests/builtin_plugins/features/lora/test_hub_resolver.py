"""Adapters of the hub: only repositories that `--lora-hub-repos` names are fetched."""

from __future__ import annotations

import asyncio

import pytest

from builtin_plugins.features.lora.resolvers.hub import HubResolver, engine_lora_resolvers
from core.config import EngineConfig


def test_only_listed_repositories_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(self: HubResolver, name: str) -> str:
        fetched.append(name)
        return "/fetched"

    monkeypatch.setattr(HubResolver, "_fetch", fetch)
    assert engine_lora_resolvers(EngineConfig()) == []
    config = EngineConfig(options={"lora_hub_repos": ["acme/*", "one/two"]})
    (resolver,) = engine_lora_resolvers(config)
    for name in ("other/adapter", "acme", "acme/a/b", "one/three"):
        assert asyncio.run(resolver.resolve_lora("base", name)) is None
    for name in ("acme/adapter", "one/two"):
        found = asyncio.run(resolver.resolve_lora("base", name))
        assert (found.lora_name, found.lora_path) == (name, "/fetched")
    assert fetched == ["acme/adapter", "one/two"]
