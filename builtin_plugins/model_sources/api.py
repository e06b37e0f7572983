"""Hub downloads for model sources of other distributions; stable like `core.api`."""

from builtin_plugins.model_sources.huggingface.hub import download, is_hub_id

__all__ = ["download", "is_hub_id"]
