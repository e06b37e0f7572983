"""Devices the engine runs on."""
