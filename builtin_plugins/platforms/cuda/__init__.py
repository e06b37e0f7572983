"""GPUs that torch computes on."""
