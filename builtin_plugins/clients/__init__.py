"""Clients: how the server talks to the engine."""
