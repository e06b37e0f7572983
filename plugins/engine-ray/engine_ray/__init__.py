"""Engine processes and ranks on a Ray cluster."""
