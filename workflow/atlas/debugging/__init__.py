"""Explain one failing check: what is wrong, and in Triton's interpreter which program and line made it so.

:mod:`.reproduction` launches a check's problem again and says in words what it shows, :mod:`.tracing` watches what its
programs load and store, and stops in one.
"""
