"""The runner of generating models: sampling parameters, logits processors and the sampler."""
