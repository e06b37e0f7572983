"""LoRA: many low-rank adapters in one batch; each request has its own or none."""
