"""KV connectors: stores of cache blocks beyond the device, in memory, files or other engines."""
