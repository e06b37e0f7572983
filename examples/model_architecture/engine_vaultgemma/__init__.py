"""the model architecture `VaultGemmaForCausalLM` for the engine."""
