"""the model architecture `StableLmForCausalLM` for the engine."""
