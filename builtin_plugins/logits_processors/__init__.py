"""Built-in logits processors; each file is a plugin that can be disabled."""
