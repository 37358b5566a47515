"""What is predicted of a GPU beside what it measured: the proof holds of the records, and breaks where it should."""

import json

from atlas import ROOT
from atlas.results import documents
from proof_doubles import job

from proofs.tuning import prediction as proof

RECORDED = ROOT / "results" / "recorded"


def test_it_holds_of_the_records_and_not_of_a_gpu_that_is_half_as_fast(tmp_path):
    for place in ("h200/survey", "h100/survey", "h200/vector_add/autotune", "h100/vector_add/autotune"):
        path = tmp_path / "recorded" / f"{place}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(documents.load(RECORDED / f"{place}.json.xz")))
    found = proof.run(job(proof, tmp_path, "--kernels", "vector_add"))
    assert len(found.claims) == 8 and found.holds
    assert "published figures in the interval: none" in found.notes[-1], "no benchmark says what the libraries took"
    document = json.loads(path.read_text())
    for trial in document["trials"]:
        trial["median_us"] = trial["median_us"] and 2 * trial["median_us"]
    path.write_text(json.dumps(document))
    broken = proof.run(job(proof, tmp_path, "--kernels", "vector_add")).broken
    assert "% by which a time is off in the median" in {claim.text.partition(",")[0] for claim in broken}
