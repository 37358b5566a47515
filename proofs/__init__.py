"""Proofs: what the measuring core claims of itself, tried on the machine at hand: ``python -m proofs NAME``.

A proof makes claims with limits, finds the figures, and keeps both with the rows they rest on.  One that does not hold
ends with exit status 1.  The product imports nothing of this package.

``measuring``  figures that agree with others and with themselves, what calls cost the host, and tuning the device
``faults``     what befalls a run: hangs, kills, full disks
``mutants``    faults planted in kernels, and true kernels that are not flagged
``tuning``     the tuner against ``triton.autotune``, search strategies against each other, configs that calls choose
``models``     whole models with the kernels put in, beside torch eager and torch.compile
``unseen``     public functions at shapes that nobody tuned, beside the peers
``identity``   that a change left the kernels as they were: ``python -m proofs.identity``
"""

PROOFS = {
    "mutants": ("mutants.proof", "faults planted in the kernels themselves: validation catches every one"),
    "false-alarms": ("mutants.false_alarms", "true kernels, validated again and again with fresh seeds: no finding"),
    "repeatability": ("measuring.repeatability", "two full benchmark runs in separate processes agree"),
    "verdicts": (
        "measuring.verdicts",
        "two sides of one commit are neither faster nor slower, a kernel slowed by 3 % is slower",
    ),
    "agreement": (
        "measuring.agreement",
        "figures agree with ncu's gpu__time_duration, and with triton.testing.do_bench on long kernels",
    ),
    "tuning-speed": ("tuning.speed", "tuning takes a fraction of triton.autotune's time and finds as good configs"),
    "choice": (
        "tuning.choice",
        "at cases nobody tuned, calls choose configs near the best, no slower than the default",
    ),
    "prediction": (
        "tuning.prediction",
        "times and configs predicted for a GPU are those that it measured, within their intervals",
    ),
    "samples": (
        "tuning.samples",
        "a few trials a case find what is nearly the best, and calls at other cases choose better by them",
    ),
    "pruning": (
        "tuning.pruning",
        "configs that the kernels' spaces leave out are hardly faster than the best of those they keep",
    ),
    "throughput": ("measuring.throughput", "several GPUs of one host tune the suite proportionally faster"),
    "faults": ("faults.proof", "hangs, crashes, kills, a full disk: each costs at most its own trial"),
    "unseen": ("unseen.proof", "at shapes that nobody tuned, public functions are as fast as the fastest peer"),
    "models": ("models.proof", "models train alike with the kernels put in, and faster than by torch.compile"),
    "workload": (
        "models.workload",
        "a Hugging Face model is captured, tuned and exported by a handful of commands, and no slower after",
    ),
    "host": ("measuring.host", "short calls and training steps cost the host little more than torch's"),
    "overhead": ("measuring.overhead", "autotune's wall time goes to trials and compilation"),
}
"""By a proof's name its module, with ``add_arguments(parser)`` and ``run(job) -> Evidence``, and its claim."""
