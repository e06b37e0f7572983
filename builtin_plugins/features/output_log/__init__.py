"""Log lines with the text of outputs (`--enable-log-outputs`)."""
