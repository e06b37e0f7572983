"""`engine quantize`: a plain checkpoint as a smaller one."""
