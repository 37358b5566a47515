"""Which devices a process may use, for hosts and values of CUDA_VISIBLE_DEVICES of every kind."""

import sys
from types import SimpleNamespace

import pytest
from atlas.host import devices, environment, gpus
from atlas.reading.config import load_gpus
from fake_nvml import Board, FakeNvml, Instance

A, B, C = (Board(f"GPU-{letter * 8}-1111-2222-3333-{letter * 12}") for letter in "abc")
SLICES = tuple(Instance(f"MIG-{n}0000000-1111", f"NVIDIA H100 80GB HBM3 MIG {n}g.10gb") for n in (1, 2))
SLICED = Board("GPU-dddddddd-1111", "NVIDIA H100 80GB HBM3", instances=SLICES)


@pytest.fixture
def host(monkeypatch):
    """Call it with boards to have them in this host."""
    monkeypatch.delenv("KERNEL_ATLAS_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(gpus.PLACES_VARIABLE, raising=False)

    def have(*boards, **settings):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*boards, **settings))

    return have


def seen(mask=None):
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    return [device.uuid for device in devices.visible(environment)]


@pytest.mark.parametrize(
    ("mask", "boards"),
    [
        (None, [A, B, C]),
        ("", []),
        ("  ", []),
        ("-1", []),
        ("1", [B]),
        ("2,0", [C, A]),  # the order is the user's: CUDA's device 0 is then NVML's 2
        ("0, 1", [A, B]),
        ("0,7,1", [A]),  # CUDA takes what stands before the first wrong entry
        ("0,-1,1", [A]),
        ("0,0", []),  # and nothing at all if one is named twice
        (f"1,{B.uuid}", []),
        (B.uuid, [B]),
        ("GPU-bb", [B]),
        (f"GPU-c,{A.uuid}", [C, A]),
        ("GPU-", []),  # a prefix of several is none of them
        ("GPU-ffff", []),
        ("nonsense", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(host, mask, boards):
    host(A, B, C)
    assert seen(mask) == [board.uuid for board in boards]


@pytest.mark.parametrize(
    ("mask", "uuids"),
    [
        (None, [A.uuid, SLICES[0].uuid, SLICES[1].uuid]),
        (SLICES[1].uuid, [SLICES[1].uuid]),
        ("1", [SLICES[0].uuid, SLICES[1].uuid]),
        ("GPU-dddd", [SLICES[0].uuid, SLICES[1].uuid]),
    ],
)
def test_of_a_board_in_mig_mode_the_instances_count(host, mask, uuids):
    host(A, SLICED)
    assert seen(mask) == uuids


def test_a_mig_instance_is_not_taken_for_its_board(host):
    host(SLICED)
    blocks = load_gpus()
    assert not gpus.matches(blocks["h100"], SLICES[0].name)
    assert gpus.matches(blocks["h100"] | {"match": "H100.*MIG 1g"}, SLICES[0].name)


def test_a_board_that_is_lost_keeps_its_index(host):
    host(Board("GPU-x", lost=True), B)
    assert seen() == [B.uuid] and seen("1") == [B.uuid] and seen("0") == []


def test_without_a_driver_there_is_no_device(host):
    host(A, loaded=False)
    assert seen() == seen("0") == [] and environment.device(A.uuid) == {}


def test_a_device_is_described_by_its_own_board(host):
    host(A, Board("GPU-b", "Tesla T4", 70_000), SLICED)
    assert environment.device("GPU-b") == {"device_name": "Tesla T4", "driver": "580.1", "power_cap_w": 70.0}
    assert environment.device(SLICES[0].uuid)["device_name"] == SLICES[0].name
    assert environment.device(SLICES[0].uuid)["power_cap_w"] == 700.0, "an instance has no cap but its board's"
    assert environment.device("GPU-gone") == {}


def state(tmp_path):
    blocks = load_gpus()
    return gpus.locate(blocks, list(blocks), [], tmp_path, False)["h200"].state


def test_the_state_changes_with_driver_and_power_cap_and_not_with_the_number_of_boards(host, tmp_path):
    host(A)
    before = state(tmp_path)
    assert before
    host(C, B, Board("GPU-t4", "Tesla T4", 70_000))
    assert state(tmp_path) == before, "any of them gives the same figures"
    host(A, driver="590.2")
    assert state(tmp_path) != before
    host(Board(A.uuid, power_cap_mw=600_000))
    assert state(tmp_path) != before
    host()
    assert state(tmp_path) == "", "elsewhere nobody knows"


def test_jobs_get_the_head_processs_state(host, tmp_path):
    host(A)
    blocks = load_gpus()
    places = gpus.locate(blocks, ["h200", "t4"], [], tmp_path, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(gpus.PLACES_VARIABLE, "")
        gpus.publish(places)
        host()
        again = gpus.locate(blocks, ["h200", "t4"], [], tmp_path, False)
    assert again["h200"].state == places["h200"].state != ""
    assert (again["t4"].where, again["t4"].state) == (gpus.ABSENT, "")


@pytest.mark.parametrize(("named", "right"), [(A.uuid, True), (B.uuid, False), ("GPU-bb", True), ("1", True)])
def test_work_on_another_device_than_the_leased_one_is_refused(monkeypatch, named, right):
    # CUDA reads its variable once, when it is initialised: what is set later narrows nothing.
    from atlas.host import runtime

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    shown = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_name=["Tesla T4", A.name].__getitem__,
        get_device_properties=lambda index: SimpleNamespace(uuid=A.uuid.removeprefix("GPU-")),
    )
    monkeypatch.setattr(runtime.torch, "cuda", shown)
    if right:
        assert runtime.device_of("h200", load_gpus()["h200"]).index == 1
    else:
        with pytest.raises(RuntimeError, match=f"{B.uuid} was set: it shows {A.uuid}"):
            runtime.device_of("h200", load_gpus()["h200"])
