"""Routes that read probabilities of given answers from a generating model."""
