"""Identities: digests of the code that decides what a document says, so that nothing else makes it stale.

:mod:`.kernel` says which a kernel has, :mod:`.stage` what of the stages' own code counts, :mod:`.needs` which document
depends on which, and :mod:`.changes` tells in words what has changed since a document was written.
"""
