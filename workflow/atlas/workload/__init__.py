"""Your workload: the problems that a file of calls comes to, in the place of the kernels' own cases.

``calls`` reads the file, ``problems`` adds up what it comes to, ``current`` is the workload of this run, ``mapping``
says what of a call its case does not say; only that imports torch.
"""
