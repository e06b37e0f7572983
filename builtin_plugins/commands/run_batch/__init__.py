"""`engine run-batch`: a file of requests, answered."""
