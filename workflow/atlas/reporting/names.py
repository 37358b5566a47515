"""Which pages the report has.  Snakemake asks while it parses the workflow: nothing is imported."""

from collections.abc import Sequence

FIRST, DETAILS = "report.html", "report/details.html"
"""The first page and the second, under the results' folder; kernels' pages lie beside the second."""


def place(kernel: str) -> str:
    """Where a kernel's page is, under the results' folder."""
    return f"report/{kernel}.html"


def page_names(kernels: Sequence[str]) -> list[str]:
    """Every page, under the results' folder."""
    return [FIRST, DETAILS, *map(place, kernels)]
