"""What each request cost: processor time, and bytes of KV cache over time (`--request-costs`)."""
