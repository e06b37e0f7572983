"""The runtime of output parsers: reads model text as a format describes it."""
