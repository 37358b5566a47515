"""The tuner: from a kernel's declared spaces to the best config of every case.

``candidates`` says what may be tried, one of the ``strategies`` (halving, guided, exhaustive) what to time next,
``session`` gets each figure from the journal or from a worker process on one device, ``search`` drives one problem to
its best config, which ``certificates`` vouch for, ``summary`` makes the document of it all, ``export`` the file that
kernels read.
"""
