"""What other distributions' sources of models fetch files from the hub with.

What is here is promised as `core.api` is.
"""

from builtin_plugins.model_sources.huggingface.hub import download, is_hub_id

__all__ = ["download", "is_hub_id"]
