"""`engine route`: one address for prefill engines and decode engines."""
