"""Specs of models: their layers, caches, tensor names and pooling, read from configs."""
