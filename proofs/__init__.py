"""Proofs: what the measuring core claims of itself, tried on the machine at hand: ``python -m atlas prove NAME``.

A proof makes claims with limits, finds the figures, and keeps both with the rows they rest on.  One that does not hold
ends with exit status 1.  A module that ``PROOFS`` names is one proof, with ``add_arguments(parser)`` and
``run(job) -> Evidence``.
"""

PROOFS = {
    "mutants": "faults planted in the kernels themselves: validation catches every one",
    "false-alarms": "true kernels, validated again and again with fresh seeds: no finding",
    "repeatability": "two full benchmark runs in separate processes agree",
    "agreement": "figures agree with ncu's gpu__time_duration, and with triton.testing.do_bench on long kernels",
    "tuning-speed": "tuning takes a fraction of triton.autotune's time and finds as good configs",
    "throughput": "several GPUs of one host tune the suite proportionally faster",
    "faults": "hangs, crashes, kills, a full disk: each costs at most its own trial",
    "overhead": "autotune's wall time goes to trials and compilation",
}
"""The proofs by name; ``false-alarms`` lives in the module ``false_alarms``."""
