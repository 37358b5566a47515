"""What the executor sends to Kubernetes, checked against the API's schema, and jobs that run from it on this host.

``make test-kubernetes`` runs it: ``tests/pods/api.py`` stands in for a cluster.  The storage is a folder in the
place of a bucket.
"""

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.conftest import PRIVATE, Checkout, make_checkout

for needed in ("snakemake_executor_plugin_kubernetes", "snakemake_storage_plugin_fs"):
    pytest.importorskip(needed, reason="pip install -c constraints.txt '.[kubernetes]' snakemake-storage-plugin-fs")
if not shutil.which("rsync"):
    pytest.skip("no rsync, by which a folder is a storage: apt-get install rsync", allow_module_level=True)

from .api import Api  # noqa: E402, it imports the client, which may not be there

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]


@pytest.fixture
def project(tmp_path) -> Checkout:
    """A checkout that git tracks, as what is sent to jobs has to be."""
    made = make_checkout(tmp_path / "project")
    made.edit("config/config.yaml", "seeds: 5", "seeds: 1")
    made.edit("config/gpus.yaml", "{gpu: 1, gpu_model: t4}", "{gpu: 1, gpu_model: t4, machine_type: n1-standard-8}")
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=made.root, check=True)
    return made


def through(api: Api, project: Checkout, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``snakemake`` with the profile."""
    (folder / "storage").mkdir()
    (folder / "kubeconfig").write_text(api.kubeconfig())
    inherited = {name: value for name, value in os.environ.items() if name not in (*PRIVATE, "PYTHONPATH")}
    storage = ("--default-storage-provider", "fs", "--default-storage-prefix", str(folder / "storage"))
    command = [sys.executable, "-m", "snakemake", *words, "--workflow-profile", "profiles/kubernetes", *storage]
    environment = inherited | {"KUBECONFIG": str(folder / "kubeconfig")}
    return subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True, check=False)


def test_stages_run_in_pods_and_their_documents_come_home_through_the_storage(project, tmp_path):
    with Api(tmp_path / "pods") as api:
        done = through(api, project, tmp_path, "measured", "--config", "kernels=vector_add", "gpus=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not api.refused and len(api.jobs) == 3
    for stage in ("validate", "autotune", "benchmark"):
        assert project.document("cpu", "vector_add", stage)["status"] == "ok"
    for job in api.jobs.values():
        pod = job["spec"]["template"]["spec"]
        assert "tolerations" not in pod and not pod["nodeSelector"], "the interpreter wants no GPU's node"
        assert not [key for key in pod["containers"][0]["resources"]["limits"] if "/" in key]


def test_a_gpus_job_asks_for_the_board_the_pool_and_the_image(project, tmp_path):
    with Api(tmp_path / "pods", runs=False) as api:
        survey = "results/measured/t4/survey.json"
        done = through(api, project, tmp_path, survey, "--config", "kernels=vector_add", "gpus=t4,cpu")
    assert done.returncode != 0, "the pod is said to have failed"
    (job,) = api.jobs.values()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert not api.refused, "the API's schema, and the rule that a GPU's limit is its request"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "n1-standard-8"}
    tolerated = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    assert tolerated in pod["tolerations"]
    assert container["image"].endswith("kernel-atlas:0.1.0")
    (secret,) = api.secrets.values()
    places = base64.b64decode(secret["data"]["kernel_atlas_places"]).decode()
    assert places == "t4=cluster,cpu=here", "where each GPU is, is settled by the head"


def test_a_job_without_a_limit_on_its_gpu_is_refused_as_by_a_real_api(project, tmp_path):
    with Api(tmp_path / "pods", runs=False) as api:
        words = ("results/measured/t4/survey.json", "--default-resources", "gpu_manufacturer=nvidia", "mem_mb=1000")
        done = through(api, project, tmp_path, *words, "--config", "kernels=vector_add", "gpus=t4,cpu")
    assert done.returncode != 0 and "limit must be set" in api.refused[0]
