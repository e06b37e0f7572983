"""KV events: block changes of the prefix cache and its tiers, published in vLLM's format."""
