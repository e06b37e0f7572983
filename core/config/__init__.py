"""The engine's configuration: sections, and where their values come from."""

from core.config.sections import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    PluginsConfig,
    SchedulerConfig,
)

__all__ = [
    "AttentionConfig",
    "CacheConfig",
    "DeviceConfig",
    "EngineConfig",
    "LoadConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "PluginsConfig",
    "SchedulerConfig",
]
