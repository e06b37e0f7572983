"""Features with halves in admission, scheduler and worker, one folder each."""
