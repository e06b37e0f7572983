"""Why a request waits, was preempted or refused, and where its time went: `/explain`, and `engine
explain` that asks it.
"""
