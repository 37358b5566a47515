"""Validation: every variant of a kernel, and its public function, against the reference in float64.

``python -m atlas validate`` runs all of it; :func:`check_config` checks one config, for a tuner or a benchmark that is
about to trust it, and :func:`judge` compares outputs that were computed elsewhere.
"""

from .device import DeviceLost
from .inspection import CHECKS, Inspection, Selection, check_config
from .judging import Judgement, judge
from .problems import Problem, full_precision

PROTOCOL = "validation/1"
"""The method's name and version: raised whenever a tolerance, a check or the choice of cases changes."""

__all__ = [
    "CHECKS",
    "PROTOCOL",
    "DeviceLost",
    "Inspection",
    "Judgement",
    "Problem",
    "Selection",
    "check_config",
    "full_precision",
    "judge",
]
