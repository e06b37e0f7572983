"""`engine doctor`: what an operator needs to know when something is wrong."""
