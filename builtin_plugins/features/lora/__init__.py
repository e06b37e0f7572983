"""LoRA: many low-rank adapters in one batch, each request with its own or none."""
