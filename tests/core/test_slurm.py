"""Which of SLURM's partitions a job goes to, by what ``sinfo`` prints, and which jobs are of a killed run."""

import stat

import pytest
import yaml
from atlas import ROOT
from atlas.errors import AtlasError
from atlas.host import gpus, slurm
from atlas.reading.config import load_gpus

SINFO = """\
cpu|up|infinite|40|(null)
login*|up|1:00:00|2|(null)
mixed|up|2-00:00:00|2|gpu:a100:4(S:0-1),nvme:1
mixed|up|2-00:00:00|1|gpu:h100:2
debug|up|30:00|1|gpu:a100:1
plain|up|12:00:00|3|gpu:4
old|down|infinite|9|gpu:t4:8
"""
THERE = slurm.read_sinfo(SINFO)


def test_lines_of_one_partition_are_added_up_and_what_is_down_is_not_there():
    assert {one.name: dict(one.gpus) for one in THERE} == {
        "cpu": {},
        "login": {},
        "mixed": {"a100": 8, "h100": 2},
        "debug": {"a100": 1},
        "plain": {"": 12},
    }
    assert {one.name: one.limit_minutes for one in THERE} == {
        "cpu": float("inf"), "login": 60, "mixed": 2880, "debug": 30, "plain": 720,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "partition"),
    [
        ({"gpu": 1, "gpu_model": "a100"}, "mixed"),  # debug has it too, for half an hour
        ({"gres": "gpu:h100:1"}, "mixed"),
        ({"gpu": 1, "gpu_model": "a100", "slurm_partition": "debug"}, "debug"),
        ({"gpu": 1, "slurm_partition": "plain"}, "plain"),  # of GPUs without a model the partition says which
        ({"gres": "gpu:1"}, "mixed"),
        ({"gpu": 1, "gpu_model": "t4"}, None),
        ({"gpu": 1, "gpu_model": "h100", "slurm_partition": "debug"}, None),
        ({"gpu": 1, "slurm_partition": "cpu"}, None),
    ],
)
def test_a_gpus_partition_is_the_one_named_or_has_its_model_and_the_longest_limit(asked, partition):
    assert slurm.partition_of(asked, THERE) == partition


def test_jobs_without_a_gpu_go_to_nodes_without_one_by_default_where_these_are_the_default():
    assert slurm.host_partition(THERE) == "login"
    assert slurm.host_partition(THERE[2:]) is None


def test_a_gpu_that_no_partition_has_is_elsewhere_and_the_heads_own_gpu_is_not_the_clusters(tmp_path, monkeypatch):
    monkeypatch.delenv(gpus.PLACES_VARIABLE, raising=False)
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "Tesla T4")
    found = gpus.locate(load_gpus(), ["a100", "t4", "cpu"], [], tmp_path, True, THERE)
    assert (found["a100"].where, found["a100"].partition) == (gpus.CLUSTER, "mixed")
    assert (found["t4"].where, found["cpu"].where) == (gpus.ABSENT, gpus.HERE)
    with pytest.raises(AtlasError, match="'t4' is required but no partition has"):
        gpus.locate(load_gpus(), ["t4"], ["t4"], tmp_path, True, THERE)


def test_only_jobs_that_runs_in_this_folder_left_are_cancelled(tmp_path, monkeypatch):
    run = f"{slurm.JOB_PREFIX}_{'0' * 8}-0000-4000-8000-{'0' * 12}"
    jobs = [f"7|{run}|{tmp_path}", f"8|{run}|/elsewhere", f"9|train|{tmp_path}", f"10|{slurm.JOB_PREFIX}|{tmp_path}"]
    (tmp_path / "jobs").write_text("\n".join(jobs) + "\n")
    for name, script in {
        "squeue": f"cat {tmp_path}/jobs",
        "scancel": f'echo "$@" >> {tmp_path}/cancelled; sed -i /^$1\\|/d {tmp_path}/jobs',
    }.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert slurm.end_leftovers(tmp_path) == ["7"]
    assert (tmp_path / "cancelled").read_text() == "7\n"


def test_without_slurm_the_remedy_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AtlasError, match="no sinfo here; run where sbatch works"):
        slurm.partitions()


def test_the_profile_names_jobs_as_they_are_looked_for_and_keeps_kernels_apart():
    profile = yaml.safe_load((ROOT / "profiles/slurm/profile.yaml").read_text())
    assert profile["slurm-jobname-prefix"] == slurm.JOB_PREFIX
    # One name for all would make one job of kernels that call each other, and it would ask for a GPU for each.
    assert {name.partition("=")[2] for name in profile["groups"]} == {"{gpu}_{kernel}"}
