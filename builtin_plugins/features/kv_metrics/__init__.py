"""How long blocks of the prefix cache stay, and how long it takes until they are wanted again
(`--kv-cache-metrics`).
"""
