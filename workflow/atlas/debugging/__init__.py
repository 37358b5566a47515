"""Explain one failing check: what is wrong, and in Triton's interpreter which program and line made it so.

:mod:`.reproduction` launches a check's problem again, :mod:`.tracing` watches what its programs load and store,
:mod:`.story` says it in words, and :mod:`.stepping` stops in a program.
"""
