"""Libraries that hold outputs to a schema, a regex or a grammar."""
