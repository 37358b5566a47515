"""Validation: every variant of a kernel, and its public function, against the reference in float64.

``python -m atlas validate`` runs all of it; :func:`certify` checks one config, for a tuner that is about to trust it,
and :func:`judge` compares outputs that were computed elsewhere.
"""

from .certification import Certificate, certify
from .device import DeviceLost
from .inspection import CHECKS, Inspection, Selection
from .judging import Judgement, judge
from .problems import Problem, full_precision

PROTOCOL = "validation/3"
"""The method's name and version: raised whenever a tolerance, a check or the choice of cases changes.

What the interpreter leaves out of that stands in its documents, in ``left_out``.
"""

__all__ = [
    "CHECKS",
    "PROTOCOL",
    "Certificate",
    "DeviceLost",
    "Inspection",
    "Judgement",
    "Problem",
    "Selection",
    "certify",
    "full_precision",
    "judge",
]
