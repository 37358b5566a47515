"""A figure is drawn again where its own rows or the code that draws it changed, and else left as it is."""

import os

import pytest
from atlas.figures import drawn
from atlas.figures.names import OVERVIEWS, PER_KERNEL
from atlas.stages import figures
from atlas.tables import store
from matplotlib.figure import Figure


@pytest.fixture
def draw(scenes, tmp_path, monkeypatch):
    """Draws tables as empty figures; returns the names of those that were drawn anew."""
    for kind in ("_OVERVIEWS", "_PER_KERNEL"):
        monkeypatch.setattr(figures, kind, dict.fromkeys(getattr(figures, kind), lambda *_: Figure(figsize=(0.1, 0.1))))
    tables, was_read = store.read(scenes["one"] / "tables"), []
    monkeypatch.setattr(figures, "read", lambda *words: was_read.append(words) or store.read(*words))

    def again(table="", where=None, **values):
        changed = {name: frame.copy() for name, frame in tables.items()}
        for column, value in values.items():
            changed[table].loc[where(changed[table]), column] = value
        folder = tmp_path / f"tables{len(list(tmp_path.iterdir()))}"
        for name, frame in changed.items():
            store.write(folder, name, frame)
        was_read.clear()
        anew = figures.draw(folder, tmp_path / "figures")[1]
        assert len(was_read) == 1, "the tables take longer to read than such figures to draw"
        return set(anew)

    again.folder = tmp_path / "figures"
    return again


def of(kernel):
    return {f"{name}-{kernel}" for name in PER_KERNEL}


def test_what_was_drawn_of_the_same_rows_is_left_and_is_as_new_as_its_tables(draw):
    assert draw() == {*OVERVIEWS} | of("softmax") | of("matmul")
    picture = draw.folder / "tuning-softmax.svg"
    content = picture.read_text()
    os.utime(picture, (1, 1))
    assert draw() == set() and picture.read_text() == content
    assert picture.stat().st_mtime > 1, "else Snakemake would take it for older than the tables"


def test_a_row_of_a_kernel_is_in_its_own_figures_and_those_of_all(draw):
    draw()
    mine = {"table": "benchmark", "where": lambda rows: (rows.kernel == "softmax") & rows.best, "median_us": 3.25}
    assert draw(**mine) == {*OVERVIEWS} | of("softmax")
    assert draw(**mine) == set()


def test_a_gpu_more_a_roof_and_other_code_concern_every_figure(draw, monkeypatch):
    every = draw()
    assert draw("benchmark", lambda rows: rows.index == rows[rows.kernel == "softmax"].index[0], gpu="h100") == every
    assert draw() == every
    assert draw("survey", lambda rows: rows.index == 0, value=3.0) == every
    draw()
    monkeypatch.setattr(drawn, "_code", lambda: "other")
    assert draw() == every


def test_a_picture_that_is_gone_or_was_cut_off_is_drawn(draw):
    draw()
    (draw.folder / "tuning-softmax.svg").unlink()
    cut = draw.folder / "build-matmul.svg"
    cut.write_text(cut.read_text()[:-40])
    assert draw() == {"tuning-softmax", "build-matmul"}
