"""KV eviction: the options, the shipped policies, and the halves of the feature."""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.api import EngineConfig, Entry, Option, Range, Registry, hookimpl

EXAMPLE_REQUESTS = [({"kv_retention": {"priority": 90}}, "there", "there")]
"""Requests for the conformance suite."""
DEFAULT: Final = "retention"


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_eviction_policy",
            str | None,
            None,
            "Eviction policy of the prefix cache: retention (priorities of kv_retention, then the "
            "least recently used; the default), lru, or a plugin's.",
        ),
        Option(
            "kv_retention_share",
            Annotated[float, Range(0, 1)],
            0.5,
            "Share of the cache that requests may retain by kv_retention.",
        ),
    ]


@hookimpl
def engine_kv_eviction() -> list[Entry]:
    policies = "builtin_plugins.kv_eviction.policies"
    return [
        Entry(
            "retention",
            f"{policies}:RetentionPolicy",
            "priorities of requests, then the least recently used first",
        ),
        Entry(
            "lru",
            f"{policies}:LRUPolicy",
            "the least recently used first, without priorities",
        ),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    registry.choose("kv_eviction", config.options.get("kv_eviction_policy") or DEFAULT)


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    from builtin_plugins.kv_eviction.admission import Admission  # lazy: faster start-up

    if config.cache.enable_prefix_caching is False:
        return [Admission("--no-enable-prefix-caching")]
    if config.options.get("kv_eviction_policy") == "lru":
        return [Admission("--kv-eviction-policy lru")]
    return [Admission()]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    from builtin_plugins.kv_eviction.scheduling import Eviction  # lazy: faster start-up

    policy_name = config.options.get("kv_eviction_policy")
    policy = registry.make(registry.choose("kv_eviction", policy_name or DEFAULT), config)[0]
    return [Eviction(policy, at_once=bool(policy_name))]
