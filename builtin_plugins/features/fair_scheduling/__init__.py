"""Fair scheduling: clients share the rows of the batch evenly."""
