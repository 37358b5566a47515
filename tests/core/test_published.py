"""Figures of others: none without a source, each a row of its own kind, and all of kernels and sizes that there are."""

import pytest
from atlas import catalog
from atlas.errors import AtlasError
from atlas.reading.config import load_gpus
from atlas.reading.published import PUBLISHED_FILE, load_published
from atlas.tables import rows, store

ENTRY = """
cublas_on_a100:
  source: https://example.org/figures
  date: 2024-07-11
  gpu: a100
  kernel: matmul
  direction: forward
  dtype: fp16
  library: cuBLAS
  version: "12.4"
  unit: TFLOP/s
  points: [{sizes: {m: 1000, n: 1000, k: 1000}, value: 100}]
"""


def written(tmp_path, text):
    path = tmp_path / "published.yaml"
    path.write_text(text)
    return path


def test_a_figure_without_a_source_is_refused_with_file_key_and_remedy(tmp_path):
    path = written(tmp_path, ENTRY.replace("  source: https://example.org/figures\n", ""))
    with pytest.raises(AtlasError, match=f"{path}: key 'cublas_on_a100': missing key 'source': .*give the address"):
        load_published(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("https://example.org/figures", "somebody", "cublas_on_a100.source': 'somebody' does not fit; give the ad"),
        ("TFLOP/s", "GFLOP/s", "'GFLOP/s' is not allowed; did you mean 'TFLOP/s'"),
        ("value: 100", "value: 0", "cublas_on_a100.points.0.value"),
        ("  date: 2024-07-11\n", "", "missing key 'date'"),
        ("library:", "libary:", "unknown key 'libary'; did you mean 'library'"),
    ],
)
def test_what_else_is_wrong_is_named_too(tmp_path, old, new, said):
    with pytest.raises(AtlasError, match=said):
        load_published(written(tmp_path, ENTRY.replace(old, new)))


def test_a_figure_is_a_row_of_kind_published_in_a_table_of_its_own(tmp_path):
    points = load_published(written(tmp_path, ENTRY))
    (row,) = store.frame("published", rows.published(points)).to_dict("records")
    assert (row["kind"], row["gpu"], row["date"], row["tflop_per_s"]) == ("published", "a100", "2024-07-11", 100)
    assert row["case"] == "m=1000 n=1000 k=1000" and row["source"] == "https://example.org/figures"
    assert points[0].us(6e6, 2e9) == pytest.approx(20)
    assert load_published(tmp_path / "none.yaml") == []


def test_the_committed_figures_name_kernels_peers_and_gpus_that_there_are():
    points = load_published(PUBLISHED_FILE)
    assert {point.gpu for point in points} >= {"a100", "h100", "t4"}
    assert {point.kernel for point in points} <= set(catalog.names())
    assert {point.gpu for point in points} - set(load_gpus()) == {"h800"}, "sold elsewhere in the place of an H100"
    assert {point.peer for point in points} <= {"", "torch", "flash", "cudnn", "liger"}
