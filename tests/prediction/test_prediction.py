"""What is expected of a GPU that nobody has at hand: its roofs, times across GPUs, configs, documents."""

import pytest
from atlas import ROOT, catalog, cli
from atlas.benchmarking.roofs import Cost
from atlas.declaration import case
from atlas.declaration.choice import untuned
from atlas.host import gpus
from atlas.prediction import configs, knowledge
from atlas.prediction.scaling import scaled
from atlas.reading.config import load_gpus
from atlas.results import collection, documents, files
from atlas.tables import rows, store

BLOCKS = load_gpus()
RECORDED = ROOT / "results" / "recorded"
SURVEY = documents.load(files.found(RECORDED / "h200", "survey"))
BIG = Cost(4e9, 2e9, 1e9)


def known(name, survey=None):
    others = {"h200": (BLOCKS["h200"], SURVEY)}
    return knowledge.known(gpus.gpu(name, BLOCKS[name]), BLOCKS[name], survey, others)


H200 = known("h200", SURVEY)


def test_a_gpu_without_a_survey_reaches_the_share_of_its_peaks_that_others_reach_of_theirs():
    a100 = known("a100")
    share = H200.survey.roofs["copy"] / BLOCKS["h200"]["datasheet"]["bandwidth_gb_per_s"]
    assert a100.survey.roofs["copy"] == pytest.approx(share * 2039) and a100.how == "datasheet"
    assert a100.issue == pytest.approx(108 * 1.41, rel=0.01), "SMs times GHz"
    with pytest.raises(ValueError, match="no other GPU has one"):
        knowledge.known(gpus.gpu("t4", BLOCKS["t4"]), BLOCKS["t4"], None, {})


def test_products_of_a_t4_go_by_fma_unless_a_build_found_otherwise():
    t4 = known("t4")
    survey, path = t4.through(None, "fp16")
    assert path == "FMA" and survey.roofs["matmul_fp16"] == t4.survey.roofs["matmul_fp32"]
    assert t4.through("mma", "fp16") == (t4.survey, "tensor cores")
    assert known("b200").through("fma", "bf16")[1] == "FMA"


def test_a_time_stays_on_its_own_gpu_and_goes_as_the_roof_where_it_is_at_the_roof():
    assert scaled(2000.0, 0.0, BIG, "bf16", H200, H200).us == pytest.approx(2000)
    at_roof = H200.floor_us + BIG.bytes / (1e3 * H200.survey.roofs["copy"])
    l40s = scaled(at_roof, 0.0, BIG, "bf16", H200, known("l40s"))
    assert l40s.us == pytest.approx(H200.floor_us + (at_roof - H200.floor_us) * 4800 / 864, rel=0.01)
    assert l40s.low_us < l40s.us < l40s.high_us
    above = [scaled(3 * at_roof, error, BIG, "bf16", H200, known("l40s")) for error in (0.0, 0.3)]
    assert above[1].high_us > above[0].high_us > above[0].us == above[1].us
    assert above[0].high_us / above[0].low_us > l40s.high_us / l40s.low_us, "nobody knows what bounds the rest"


def test_the_config_is_one_that_was_fast_elsewhere_and_can_run_here_else_the_gpus_own_default():
    declaration, on = catalog.load("vector_add"), gpus.gpu("l40s", BLOCKS["l40s"])
    problem = case("fp32", n=2**24)
    own = ("blocks", dict(untuned(declaration.forward, problem, on)[1]))
    fast, faster = (("blocks", {"BLOCK": size, "num_warps": 4}) for size in (512, 2048))
    timed = configs.Trials(H200.gpu, ((problem, ((own, 30.0), (fast, 28.0), (faster, 26.0))),))

    def made(refused=()):
        found = configs.chosen(declaration, "forward", problem, on, timed, {configs.key(one) for one in refused})
        return (found.variant, found.config), found.us, found.error

    assert made() == (faster, 26.0, 0.0)
    assert made([faster]) == (fast, 28.0, 0.0)
    config, us, error = made([own, fast, faster])
    assert config == own and 26 < us <= 30 and error > 0, "what cannot run here says how long the default took there"
    timed = configs.Trials(H200.gpu, ((problem, ((("gone", {}), 26.0),)),))
    config, us, error = made()
    assert (config, us) == (own, 26.0) and error > 0.2, "only another variant was timed: who knows"
    elsewhere = configs.chosen(declaration, "forward", case("fp32", n=7), on, timed, ())
    assert elsewhere == "not timed on h200"


@pytest.fixture
def results(tmp_path):
    for place in ("h200/survey", "h100/survey", "h200/vector_add/autotune", "h100/vector_add/autotune"):
        path = tmp_path / "recorded" / f"{place}.json.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(RECORDED / f"{place}.json.xz")
    return tmp_path


def predict(results, *words):
    return cli.main(["predict", *words, "--results", str(results)])


def test_a_document_says_from_where_and_its_rows_are_of_kind_predicted(results, capsys):
    assert predict(results, "vector_add,softmax", "--gpu", "t4,h200", "--missing") == 0
    assert "softmax on t4: skipped: no other GPU timed softmax" in capsys.readouterr().out
    made = documents.read(results / "measured" / "t4" / "vector_add" / "predict.json", "predict")
    assert (made["kind"], made["from_gpu"], made["roofs"]["how"]) == ("predicted", "h100", "datasheet")
    assert not (results / "measured" / "h200" / "vector_add").exists(), "it was timed itself"
    table = store.frame("predictions", rows.predictions(collection.predictions(results)))
    assert set(table.kind) == {"predicted"} and set(table.gpu) == {"t4"} and not table.stale.any()
    fine = table[table.status == "ok"]
    assert len(fine) and (fine.low_us < fine.median_us).all() and (fine.median_us < fine.high_us).all()
    assert all(entry.stage != "predict" for entry in collection.collect(results)), "no document that judges a kernel"


def test_mistakes_are_named(results, capsys):
    assert predict(results, "vector_add", "--gpu", "cpu") == 2 and predict(results, "softmaxx", "--gpu", "t4") == 2
    said = capsys.readouterr().err
    assert "the interpreter has no speed to predict" in said and "softmaxx" in said
