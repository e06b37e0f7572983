"""The processors of transformers."""
