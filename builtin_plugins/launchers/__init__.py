"""Launchers: start the processes of the engine, on this machine or elsewhere."""
