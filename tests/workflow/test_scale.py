"""A catalog four times as large as today's on three times as many GPUs: is all of it planned, and how long does that
take?  ``pytest -m slow -s tests/workflow/test_scale.py`` prints the seconds.
"""

import time
from pathlib import Path

import pytest
import yaml

from .conftest import Checkout

KERNELS, GPUS = 100, 20


def enlarge(root: Path) -> tuple[list[str], list[str]]:
    """Copies of a small kernel and of a GPU's block, until there are as many; their names."""
    text = (root / "kernels/dropout.py").read_text()
    kernels = [path.name for path in (root / "kernels").iterdir() if (path / "declaration.py").exists()]
    kernels += [path.stem for path in (root / "kernels").glob("[a-z]*.py")]
    for place in range(KERNELS - len(kernels)):
        name = f"dropout_{place}"
        (root / f"kernels/{name}.py").write_text(text.replace('"dropout"', f'"{name}"'))
        kernels.append(name)
    file = root / "config/gpus.yaml"
    blocks = yaml.safe_load(file.read_text())
    for place in range(GPUS - len(blocks)):
        blocks[f"made_up_{place}"] = blocks["h100"] | {"match": f"Made up {place}$"}
    file.write_text(yaml.safe_dump(blocks))
    return kernels, list(blocks)


@pytest.mark.slow
def test_a_dry_run_of_a_hundred_kernels_on_twenty_gpus_plans_every_job(checkout: Checkout) -> None:
    kernels, gpus = enlarge(checkout.root)
    assert (len(kernels), len(gpus)) == (KERNELS, GPUS)
    said = {}
    for when in ("from a fresh clone", "again"):  # the second time what the source says is known
        start = time.perf_counter()
        said[when] = checkout.planned()
        print(f"dry run {when}: {time.perf_counter() - start:.1f} s, {sum(said[when].values())} jobs")
    jobs = said["again"]
    assert jobs == said["from a fresh clone"]
    predicted_alone = {"b200", "l40s", "mi300x"}
    assert jobs["build"] == KERNELS * (GPUS - len(predicted_alone) - 1), "one a kernel for each GPU but the interpreter"
    for stage in ("validate", "autotune", "benchmark"):
        assert jobs[stage] == KERNELS, f"{stage}: the interpreter alone is within reach"
    assert jobs["predict"] == jobs["tables"] == jobs["figures"] == jobs["report"] == 1
