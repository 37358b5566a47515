"""The workflow used from a repository, as snakedeploy writes it: Snakemake fetches rules, the run all of the code."""

import subprocess

from .conftest import Checkout

MODULE = """
configfile: "config/config.yaml"

module kernel_atlas:
    snakefile: "git+file://{repository}/workflow/Snakefile@v1"
    config: config

use rule * from kernel_atlas
"""


def test_a_folder_with_a_module_and_its_own_gpus_plans_what_the_repository_does(checkout, tmp_path):
    git = ["git", "-C", str(checkout.root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    deployed = Checkout(tmp_path / "deployed")
    (deployed.root / "workflow").mkdir(parents=True)
    (deployed.root / "workflow/Snakefile").write_text(MODULE.format(repository=checkout.root))
    (checkout.root / "config").rename(deployed.root / "config")
    deployed.edit("config/gpus.yaml", "\nt4:\n", "\nmine:\n")
    asked = ("--config", "kernels=vector_add", "gpus=mine,cpu")
    jobs = deployed.planned(*asked)
    stages = ("build", "cuda", "validate", "autotune", "benchmark", "predict")
    views = ("tables", "figures", "report", "track", "verdict", "all")
    assert jobs == dict.fromkeys(stages + views, 1)
    (tree,) = (deployed.root / ".snakemake/kernel-atlas").iterdir()
    assert (tree / "kernels/vector_add.py").exists(), "the commit's own"
    assert "t4" in (tree / "config/gpus.yaml").read_text()
    path = "results/measured/mine/vector_add/cuda.json"
    done = deployed.snakemake(path, *asked)
    assert (deployed.root / path).exists(), done.stderr
