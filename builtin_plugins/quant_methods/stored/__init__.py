"""Reads quantized checkpoints: canonical layouts, word unpacking, and the layers that use them.

Public for plugins, like `core.models.layers`. A format (`StoredFormat`) is a set of facts about
tensors; a backend is what a device multiplies with.
"""
