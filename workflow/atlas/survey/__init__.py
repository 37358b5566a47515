"""What one GPU can do at most: its roofs, measured by the one clock.

A roof serves as a gate (no kernel may be faster) and as a yardstick, so it has to be the best of several ways and
sizes, not one library call.  The kernels that measure it are in ``kernels.py`` here and not under the project's
``kernels/``: they are instruments without a use of their own, and must not change when a kernel does.
"""
