"""`engine completion`: completion of the command line in shells."""
