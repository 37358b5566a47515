"""Which config a call runs: of a tuned case what won there, else what is surely faster than the default."""

import dataclasses
import json

import pytest
import torch
from atlas.declaration import GPU, Declaration, Pass, Variant, case, choice, choose, eager
from atlas.declaration.hardware import pretend

SMALL = GPU(
    "here", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=2**37, l2_bytes=2**25, device_name="NVIDIA H200"
)


CERTIFICATE = {"protocol": "validation/2", "cases": 9, "checks": 60, "seeds": 5}


def _variant(name: str, longest: int) -> Variant:
    return Variant(
        name=name,
        launch=lambda *, config: None,
        space={"BLOCK": (128, 256, 512)},
        default=lambda problem, gpu: {"BLOCK": 128},
        fits=lambda config, problem, gpu: "too large" if config["BLOCK"] > 256 and problem["n"] < 64 else "",
        handles=lambda problem, gpu: "" if problem["n"] <= longest else f"rows longer than {longest}",
    )


@pytest.fixture
def declaration():
    work = Pass(
        inputs=lambda problem, device, generator: {},
        reference=lambda: None,
        outputs=("y",),
        variants=(_variant("short", 4096), _variant("long", 2**20)),
        peers={"torch": eager(lambda: None)},
        bytes=lambda problem: {"y": problem["n"]},
        flops=lambda problem: {},
    )
    return Declaration(
        name="toy", family="toys", summary="", function=lambda: None, call=lambda f, i: None, dtypes=("fp32",),
        cases=lambda gpu: [], edge_cases=(), forward=work,
    )  # fmt: skip


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Writes kernels/tuned/<gpu>.json for this test alone, with what was timed by ``n``."""

    def write(*entries: dict, timed: dict[int, tuple] | None = None) -> None:
        document = {"gpu": "h200", "match": "NVIDIA H200$", "entries": list(entries)}
        (tmp_path / "h200.json").write_text(json.dumps(document))
        path = choice.timings_file("h200", "toy")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(timings(timed or {})))

    monkeypatch.setattr(choice, "TUNED", tmp_path)
    choice._entries.cache_clear()
    choice._choose.cache_clear()
    yield write
    choice._entries.cache_clear()
    choice._choose.cache_clear()


def entry(n: int, variant: str, block: int, dtype: str = "fp32", **more) -> dict:
    return {"kernel": "toy", "direction": "forward", "dtype": dtype, "sizes": {"n": n} | more, "variant": variant,
            "config": {"BLOCK": block}, "certificate": CERTIFICATE}  # fmt: skip


def timings(timed: dict[int, tuple]) -> dict:
    """Microseconds of `short` with 128, its default, and with 256, then of `long` with 512, by n."""
    configs = [("short", 128), ("short", 256), ("long", 512)]
    cases = [{"dtype": "fp32", "sizes": {"n": n}, "default": 0, "us": list(us)} for n, us in timed.items()]
    listed = [{"variant": variant, "config": {"BLOCK": block}} for variant, block in configs]
    return {"form": 1, "passes": {"forward": {"configs": listed, "cases": cases}}}


def chosen(declaration, n: int, gpu: GPU = SMALL, dtype: str = "fp32"):
    with pretend(gpu):
        variant, config = choose(declaration, "forward", case(dtype, n=n), torch.device("cpu"))
    return variant.name, config["BLOCK"]


def test_without_tuned_configs_the_first_variant_that_supports_the_case_runs_its_default(declaration, tuned):
    assert chosen(declaration, 1024) == ("short", 128)
    assert chosen(declaration, 8192) == ("long", 128)


FASTER = {512: (100.0, 80.0, 300.0), 1024: (200.0, 160.0, 600.0), 2048: (400.0, 320.0, 900.0)}


def test_a_tuned_case_takes_what_won_there_whatever_else_is_expected(declaration, tuned):
    tuned(entry(1024, "long", 512), entry(2048, "short", 256), timed=FASTER)
    assert chosen(declaration, 1024) == ("long", 512)


def test_a_case_between_tuned_ones_takes_what_is_faster_at_all_of_them(declaration, tuned):
    tuned(entry(1024, "short", 256), entry(2**18, "long", 512), timed=FASTER)
    assert chosen(declaration, 1100) == ("short", 256)


def test_what_won_at_the_nearest_case_is_not_taken_where_it_is_slow_next_to_it(declaration, tuned):
    """The rule of before took it, and was behind the default by 1 % on average."""
    tuned(
        entry(1024, "short", 256), timed={512: (10.0, 12.0, None), 1024: (16.2, 16.0, None), 2048: (32.0, 40.0, None)}
    )
    assert chosen(declaration, 1100) == ("short", 128)


def test_a_gain_that_a_short_kernels_timing_cannot_show_is_not_believed(declaration, tuned):
    tuned(entry(512, "short", 256), timed={512: (5.0, 4.9, None), 2048: (5.2, 5.1, None)})
    assert chosen(declaration, 1024) == ("short", 128)
    tuned(entry(512, "short", 256), timed={512: (500.0, 490.0, None), 2048: (520.0, 510.0, None)})
    choice._choose.cache_clear()
    choice._timings.cache_clear()
    assert chosen(declaration, 1024) == ("short", 256)


def test_a_config_that_won_and_of_which_no_timing_is_known_is_not_taken(declaration, tuned):
    tuned(entry(1000, "long", 256), timed=FASTER)
    assert chosen(declaration, 1024) == ("short", 128)


def test_without_timings_a_case_that_was_not_tuned_runs_the_default(declaration, tuned):
    tuned(entry(1000, "short", 256))
    choice.timings_file("h200", "toy").unlink()
    assert chosen(declaration, 1024) == ("short", 128)


def test_a_tuned_variant_that_cannot_run_the_case_is_passed_over(declaration, tuned):
    slow_default = {2048: (400.0, 200.0, 300.0), 4096: (800.0, 400.0, 600.0)}
    tuned(entry(4096, "short", 256), entry(2**19, "long", 512), timed=slow_default)
    assert chosen(declaration, 4000) == ("short", 256)
    assert chosen(declaration, 5000)[0] == "long", "4096 is nearer, but its variant stops there"


def test_a_config_that_does_not_fit_the_case_is_passed_over(declaration, tuned):
    tuned(entry(32, "short", 512))
    assert chosen(declaration, 32) == ("short", 128)


def test_a_default_that_does_not_fit_gives_way_to_the_config_most_like_it(declaration, tuned):
    """As on a GPU with less shared memory than those that the default was written for."""
    short = dataclasses.replace(
        declaration.forward.variants[0],
        space={"BLOCK": (128, 256, 512), "STAGES": (2, 3)},
        default=lambda problem, gpu: {"BLOCK": 512, "STAGES": 3},
        fits=lambda config, problem, gpu: "too much" if config["BLOCK"] * config["STAGES"] > problem["n"] else "",
    )
    declaration = dataclasses.replace(declaration, forward=dataclasses.replace(declaration.forward, variants=(short,)))

    def config(n):
        with pretend(SMALL):
            return choose(declaration, "forward", case("fp32", n=n), torch.device("cpu"))[1]

    assert config(2048) == {"BLOCK": 512, "STAGES": 3}
    assert config(800) == {"BLOCK": 128, "STAGES": 3}
    assert config(100) == {"BLOCK": 512, "STAGES": 3}, "nothing fits, so its author's word is taken"


def test_a_config_of_another_dtype_is_never_used(declaration, tuned):
    tuned(entry(1024, "short", 256, dtype="bf16"))
    assert chosen(declaration, 1024) == ("short", 128)


def test_a_config_that_was_not_certified_for_its_dtype_is_never_used(declaration, tuned):
    uncertified = entry(1024, "short", 256)
    del uncertified["certificate"]  # as in files from before there were certificates
    tuned(uncertified, entry(1024, "short", 256, dtype="bf16"), timed=FASTER)
    assert chosen(declaration, 1024) == chosen(declaration, 1500) == ("short", 128), "nobody vouches for it"
    assert chosen(declaration, 1024, dtype="bf16") == ("short", 256)


def test_a_file_without_certificates_is_read_and_gives_the_defaults(declaration, tuned):
    tuned(*(entry(n, "short", 256) | {"certificate": None} for n in (512, 1024)), timed=FASTER)
    assert chosen(declaration, 1024) == ("short", 128)


def test_a_config_from_before_the_space_changed_is_passed_over(declaration, tuned):
    tuned(entry(1024, "short", 256) | {"config": {"BLOCK": 256, "OLD": 1}}, entry(1024, "gone", 256))
    assert chosen(declaration, 1024) == ("short", 128)


def test_configs_of_another_gpu_are_never_used(declaration, tuned):
    tuned(entry(1024, "short", 256))
    other = GPU("x", "cuda", 90, 114, 232448, 2**36, 2**25, device_name="NVIDIA H200 NVL")
    assert chosen(declaration, 1024, other) == ("short", 128)


@pytest.fixture
def elsewhere(tuned):
    """Writes what another GPU timed, with certificates of these dtypes for `short` with 256."""

    def write(board: str = "cuda 90, 132 sms", dtypes: tuple = ("fp32",)) -> None:
        document = timings(FASTER) | {"board": board}
        document["passes"]["forward"]["configs"][1]["certified"] = list(dtypes)
        path = choice.timings_file("h100", "toy")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))
        choice._elsewhere.cache_clear()

    yield write
    choice._elsewhere.cache_clear()


NAMELESS = dataclasses.replace(SMALL, device_name="NVIDIA H800")


def test_a_gpu_without_a_file_takes_what_another_one_of_its_board_found_faster(declaration, tuned, elsewhere):
    elsewhere()
    assert chosen(declaration, 1100, NAMELESS) == ("short", 256)
    assert chosen(declaration, 1024, NAMELESS) == ("short", 256), "by expectation: it was not tuned here"


def test_one_with_a_file_weighs_both(declaration, tuned, elsewhere):
    tuned(entry(2048, "long", 512), timed=dict.fromkeys((512, 1024, 2048), (1000.0, 1200.0, 3000.0)))
    elsewhere()
    assert chosen(declaration, 1024) == ("short", 128), "its own timings are nearer, and of longer calls"
    assert chosen(declaration, 2048) == ("long", 512)


@pytest.mark.parametrize(
    "other", [{"board": "cuda 90, 114 sms"}, {"board": "cuda 100, 132 sms"}, {"dtypes": ("bf16",)}]
)
def test_another_board_and_what_is_not_certified_for_the_dtype_is_not_weighed(declaration, tuned, elsewhere, other):
    elsewhere(**other)
    assert chosen(declaration, 1100, NAMELESS) == ("short", 128)


def test_where_a_stage_hands_configs_on_no_other_gpu_is_asked(declaration, tuned, handed, elsewhere):
    elsewhere()
    handed(entry(1024, "long", 512))
    assert chosen(declaration, 1100) == ("short", 128)


def test_a_broken_file_of_another_gpu_is_passed_over(declaration, tuned, elsewhere):
    elsewhere()
    choice.timings_file("h100", "toy").write_text('{"board": ')
    assert chosen(declaration, 1100, NAMELESS) == ("short", 128)


def test_a_case_no_variant_supports_is_refused_with_each_reason(declaration, tuned):
    with pytest.raises(NotImplementedError, match="rows longer than 4096.*rows longer than 1048576"):
        chosen(declaration, 2**21)


def test_a_case_is_its_sizes_in_their_types_and_its_flags():
    assert choice.same_case({"n": 8, "causal": True}, {"causal": True, "n": 8})
    for other in ({"n": 8}, {"n": 8, "causal": False}, {"n": 8, "causal": 1}, {"n": 8.0, "causal": True}):
        assert not choice.same_case({"n": 8, "causal": True}, other)


def test_an_order_of_operands_that_is_left_out_is_by_rows():
    square, by_columns = {"n": 64}, {"n": 64, "layout": "TN"}
    assert choice.same_case(square, {"n": 64, "layout": "NN"}) and choice.same_case(by_columns, by_columns)
    assert choice.same_case(by_columns, {"n": 64, "layout": "T"})
    assert not choice.same_case(by_columns, square) and not choice.same_case(by_columns, {"n": 64, "layout": "NT"})


@pytest.fixture
def handed(tuned, tmp_path, monkeypatch):
    """Writes the file that a stage hands on."""

    def write(*entries: dict, match: str = "NVIDIA H200$") -> None:
        path = tmp_path / "handed" / "h200.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"gpu": "h200", "match": match, "entries": list(entries)}))
        monkeypatch.setenv(choice.VARIABLE, str(path))

    return write


def test_configs_that_a_stage_hands_on_go_before_the_exported_ones(declaration, tuned, handed):
    tuned(entry(1024, "short", 256))
    handed(entry(2048, "short", 512))
    assert chosen(declaration, 2048) == ("short", 512)
    assert chosen(declaration, 1024) == ("short", 128), "tuned, but in another run"


def test_exported_configs_of_kernels_that_are_not_handed_on_stay(declaration, tuned, handed):
    tuned(entry(1024, "short", 256))
    handed(entry(1024, "short", 512) | {"kernel": "another"})
    assert chosen(declaration, 1024) == ("short", 256)


def test_handed_configs_of_another_gpu_are_never_used(declaration, tuned, handed):
    tuned(entry(1024, "short", 256))
    handed(entry(1024, "short", 512), match="Tesla T4")
    assert chosen(declaration, 1024) == ("short", 256)
