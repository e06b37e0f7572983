"""Which cached block goes first: the options, the orders that are shipped, and the halves at the
edge and beside the scheduler.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.api import EngineConfig, Entry, Option, Within, hookimpl

EXAMPLE_REQUESTS = [({"kv_retention": {"priority": 90}}, "there", "there")]
"""What the conformance suite gives."""
DEFAULT: Final = "retention"


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_eviction_policy",
            str | None,
            None,
            "Which cached block goes first: retention (what requests say, kv_retention, then the "
            "least recently used; "
            "the default), lru, or a plugin's.",
        ),
        Option(
            "kv_retention_share",
            Annotated[float, Within(0, 1)],
            0.5,
            "Share of the cache that may be kept longer because requests say so.",
        ),
    ]


@hookimpl
def engine_kv_eviction() -> list[Entry]:
    eviction = "builtin_plugins.kv_eviction"
    return [
        Entry(
            "retention",
            f"{eviction}.retention:Retaining",
            "what requests say, then the least recently used first",
        ),
        Entry(
            "lru",
            f"{eviction}.lru:LeastRecentlyUsed",
            "the least recently used first, whatever requests say",
        ),
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.kv_eviction.admission import Admission  # lazy: start-up stays quick

    if config.cache.enable_prefix_caching is False:
        return [Admission("--no-enable-prefix-caching")]
    return [
        Admission(
            "--kv-eviction-policy lru" if config.options.get("kv_eviction_policy") == "lru" else ""
        )
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.kv_eviction.scheduling import Eviction  # lazy: start-up stays quick

    wanted = config.options.get("kv_eviction_policy")
    policy = registry.make(registry.choose("kv_eviction", wanted or DEFAULT), config)[0]
    return [Eviction(policy, at_once=bool(wanted))]
