"""`engine doctor`: checks the machine and the installation."""
