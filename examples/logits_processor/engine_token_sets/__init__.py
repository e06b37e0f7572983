"""logits processor `token_sets` for the engine."""
