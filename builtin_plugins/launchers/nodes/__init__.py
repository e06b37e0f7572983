"""Processes on several hosts (nodes) without a cluster manager."""
