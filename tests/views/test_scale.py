"""Views of eight simulated GPUs with forty kernels: ``pytest -m slow -s tests/views/test_scale.py`` prints seconds."""

from collections import Counter

import pandas as pd
import pytest
import scale
import synthetic
from atlas import catalog
from atlas.figures.names import figure_names
from atlas.reporting.names import page_names

MOST_MIB, MOST_PAGE = 2048, 3 * 2**20
"""What a small machine has, and what a phone loads in a second."""


@pytest.mark.slow
def test_eight_gpus_of_forty_kernels_are_whole_in_every_view_and_fit_a_small_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "KERNELS", catalog.KERNELS)
    scale.fill(tmp_path)
    runs = [scale.run(tmp_path, view) for view in scale.VIEWS]
    print(f"{sum(one.seconds for one in runs):.1f} s in all;", *runs, sep="\n")
    assert max(one.peak_mib for one in runs) < MOST_MIB
    stages = pd.read_parquet(tmp_path / "tables/coverage.parquet")
    timed = stages[(stages.stage == "benchmark") & (stages.status == "ok")]
    assert Counter(timed.gpu) == dict.fromkeys(synthetic.MANY, len(scale.KERNELS))
    names = [kernel.name for kernel in scale.KERNELS]
    assert {path.stem for path in (tmp_path / "figures").glob("*.svg")} == set(figure_names(names))
    pages = [tmp_path / page for page in page_names(names)]
    assert all(page.exists() for page in pages)
    assert max(page.stat().st_size for page in pages) < MOST_PAGE
    first = (tmp_path / "report.html").read_text()
    assert all(f'href="report/{name}.html"' in first for name in names)
