"""KV events: what the prefix cache and the tiers behind it remember and forget, published in vLLM's
format.
"""
