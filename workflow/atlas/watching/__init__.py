"""Writes down which calls of the kernels a program makes: a workload, which the workflow then tunes and times.

``python -m atlas watch -- python train.py``, or the variable ``KERNEL_ATLAS_WATCH``, which names the file.  Nothing
here is imported by a program that is not watched.  ``seats`` stand where calls pass, ``book`` counts them, ``spans``
time them on a GPU, ``merging`` adds what processes saw to one file.
"""
