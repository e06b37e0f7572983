"""Routes for operators: pausing, caches, configuration, calls of features; all behind one switch."""
