"""Any causal model that transformers can build, on the engine's own batches and paged cache."""
