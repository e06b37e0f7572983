"""Connector `tcp`: engines fetch blocks from each other's host memory."""
