"""Where each GPU is, for hosts and records of every kind."""

import pytest
from atlas import ROOT
from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.results import documents, files

BLOCKS = load_gpus()


@pytest.fixture(autouse=True)
def head_process(monkeypatch):
    monkeypatch.delenv(gpus.PLACES_VARIABLE, raising=False)


def where(tmp_path, monkeypatch, devices="", required=(), cluster=False):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", devices)
    places = gpus.locate(BLOCKS, list(BLOCKS), required, tmp_path, cluster)
    return {name: place.where for name, place in places.items()}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("Tesla T4", "t4"),
        ("NVIDIA T4", "t4"),
    ],
)
def test_a_device_is_recognised_by_the_drivers_name(tmp_path, monkeypatch, device, name):
    places = where(tmp_path, monkeypatch, device)
    assert [gpu for gpu, place in places.items() if place == gpus.HERE] == [name, "cpu"]


@pytest.mark.parametrize("device", ["NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", "NVIDIA T400 4GB"])
def test_a_sibling_with_other_memory_or_power_is_not_taken_for_it(tmp_path, monkeypatch, device):
    places = where(tmp_path, monkeypatch, device)
    assert [gpu for gpu, place in places.items() if place == gpus.HERE] == ["cpu"]


def test_a_gpu_elsewhere_is_recorded_where_a_record_is_at_hand_and_absent_where_not(tmp_path, monkeypatch):
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "survey.json").write_text("{}")
    (tmp_path / "t4").mkdir()  # an empty folder is no record
    places = where(tmp_path, monkeypatch)
    assert (places["h200"], places["t4"], places["a100"]) == (gpus.RECORDED, gpus.ABSENT, gpus.ABSENT)


def test_on_a_cluster_a_gpu_with_cluster_resources_is_reachable(tmp_path, monkeypatch):
    assert where(tmp_path, monkeypatch, cluster=True)["a100"] == gpus.CLUSTER


def test_a_required_gpu_that_is_not_here_stops_the_run_and_says_what_is(tmp_path, monkeypatch):
    with pytest.raises(AtlasError, match="'a100' is required but not here.*'A100.*80GB'.*Tesla T4"):
        where(tmp_path, monkeypatch, "Tesla T4", required=["a100"])


def test_jobs_get_the_head_processs_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "Tesla T4")
    monkeypatch.setenv(gpus.PLACES_VARIABLE, "")
    gpus.publish(gpus.locate(BLOCKS, ["t4", "h200"], [], tmp_path, False))
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "")  # a node that sees no GPU parses the workflow again
    assert gpus.locate(BLOCKS, ["t4"], ["t4"], tmp_path, False)["t4"].where == gpus.HERE


def test_a_block_becomes_the_gpu_that_kernels_see():
    t4 = gpus.gpu("t4", BLOCKS["t4"])
    assert (t4.arch, t4.sms, t4.shared_bytes, t4.functional) == (75, 40, 65536, False)
    assert not t4.capabilities, "Triton >= 3.4 reaches none of its tensor cores, and it has no bf16"
    h200 = gpus.gpu("h200", BLOCKS["h200"])
    assert h200.memory_bytes == 141 * 2**30 and "wgmma" in h200.capabilities


@pytest.mark.parametrize(
    ("right", "written", "said"),
    [
        (
            "cuda: 90",
            "cuda: sm_90",
            "key 'h100.target.cuda': 'sm_90' is of the wrong type.*compute capability times ten",
        ),
        ("cuda: 75", "hip: mi300x", "key 't4.target.hip': 'mi300x' does not fit; give the architecture's name"),
        ("a100:", "A100:", "'A100' does not fit; give a block a name of lower-case letters"),
        ("sms: 40", "sm: 40", "key 't4': unknown key 'sm'; did you mean 'sms'"),
    ],
)
def test_a_mistake_in_a_block_is_answered_with_what_would_be_right(tmp_path, right, written, said):
    text = GPUS_FILE.read_text()
    assert right in text
    (tmp_path / "gpus.yaml").write_text(text.replace(right, written, 1))
    with pytest.raises(AtlasError, match=said):
        load_gpus(tmp_path / "gpus.yaml")


def properties(gpu, **changes):
    """What the driver said of a GPU when its record was made."""
    survey = documents.load(files.found(ROOT / "results" / "recorded" / gpu, "survey"))
    return survey["properties"] | changes


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_the_blocks_of_recorded_gpus_are_as_their_drivers_said(gpu):
    assert gpus.disagreement(gpu, BLOCKS[gpu], properties(gpu)) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sms": 114}, "sms 132 (driver: 114)"),
        ({"memory_bytes": 94 * 2**30}, "memory_gib 141 (driver: 94)"),
        ({"l2_bytes": 50 * 2**20}, "l2_mib 60 (driver: 50)"),
        ({"shared_bytes": 163 * 2**10}, "shared_memory_kib 227 (driver: 163)"),
        ({"compute_capability": "10.0"}, "target cuda 90 (driver: 10.0)"),
        ({"name": "NVIDIA H200 NVL"}, "match 'NVIDIA H200$' (not found in the name)"),
    ],
)
def test_what_the_driver_says_otherwise_than_a_block_is_named_with_both_values(changes, said):
    found = gpus.disagreement("h200", BLOCKS["h200"], properties("h200", **changes))
    assert found.startswith("gpus.yaml: block 'h200' is not as the driver says of ")
    assert f": {said}; correct the block" in found


def test_memory_that_a_board_keeps_to_itself_is_no_disagreement():
    assert gpus.disagreement("h200", BLOCKS["h200"], properties("h200", memory_bytes=132 * 2**30)) == ""
