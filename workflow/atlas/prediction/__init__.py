"""What kernels should take on a GPU that nobody has at hand, and with which config: of kind ``predicted``.

From the timings of a GPU that ran them, scaled by what is known of both (:mod:`.knowledge`, :mod:`.scaling`), and the
model by which calls choose configs (:mod:`.configs`).  How good it is, ``python -m proofs prediction`` tries.
"""
