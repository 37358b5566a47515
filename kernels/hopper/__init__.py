"""Kernels for Hopper alone (sm_90), in Gluon; the families' files launch them as variants of theirs."""
