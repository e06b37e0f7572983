"""What reads stored formats: canonical layouts, unpacking of words, and layers whose checkpoints
have them.

Public for plugins, like `core.nn`. A format is a page of facts (`StoredFormat`); what a device
multiplies by is a keeper.
"""
