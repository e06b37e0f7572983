"""What reads stored formats: canonical layouts, unpacking of words, and layers whose checkpoints
have them.

Public for plugins, like `core.models.layers`. A format is a page of facts (`StoredFormat`); what a device
multiplies by is a keeper.
"""
