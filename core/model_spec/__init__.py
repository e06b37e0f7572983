"""Specs of models: their layers, caches, tensor names and pooling, read from configs.

Also what layers are written against: parallel groups, quantization methods and the op table.
"""
