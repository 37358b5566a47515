"""Proof that a change of the source left the kernels as they were: the same binaries, launched in the same way.

``python -m proofs.identity`` compiles what the records hold (the tuned and the default config of every case and
variant) and compares it with ``proofs/identity.json``, which was made from the source that the records were measured
with.  ``--rekey`` then writes today's identities into the records, where they are proved to be of the same code.
"""
