"""Where adapters are looked for that nobody has named: a folder of this machine, the hub."""
