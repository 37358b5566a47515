"""What the proof of whole models claims, by rows made up here; the models themselves run on a GPU alone."""

import pytest
import torch
from atlas.results.pieces import Pieces

from proofs.models import hugging_face, proof


def row(model, torch_=100.0, compiled=120.0, ours=110.0, ours_compiled=140.0, apart=0.01, noise=0.01, reason=""):
    speeds = dict(zip(proof.WAYS, (torch_, compiled, ours, ours_compiled), strict=True))
    losses = {"apart": apart, "noise": noise, "first": 10.0, "last": 3.0}
    if reason:
        speeds, losses = dict.fromkeys(speeds), dict.fromkeys(losses)
    return {"model": model, **speeds, **losses, "reason": reason}


def test_all_claims_hold_where_the_kernels_are_faster_and_train_alike():
    evidence = proof.evidence([row("decoder 1024"), row("llama")])
    assert evidence.holds
    assert evidence.rows[0]["over compile"] == pytest.approx(140 / 120)


@pytest.mark.parametrize(
    ("made", "broken"),
    [
        (row("decoder 1024", ours_compiled=125.0), "over torch.compile's"),
        (row("bert", ours=95.0), "over those before"),
        (row("llama", apart=0.5, noise=0.01), "differences of losses"),
        (row("llama", reason="RuntimeError: no"), "models that failed"),
    ],
    ids=["slower than asked", "slower than before", "losses drift", "failed"],
)
def test_each_claim_breaks_by_itself(made, broken):
    evidence = proof.evidence([row("decoder 2048"), row("llama"), made])
    assert [claim.text for claim in evidence.broken if broken in claim.text] and len(evidence.broken) == 1


def test_losses_may_differ_as_much_as_those_of_torch_compile_twice():
    assert proof.evidence([row("llama", apart=0.19, noise=0.1)]).holds


def test_each_way_is_kept_as_soon_as_it_is_trained_and_not_trained_again(monkeypatch, tmp_path, capsys):
    trained = []

    def train(step, model, batches, rate):
        if len(trained) == broken_at:
            raise RuntimeError("the machine goes away")
        trained.append(batches)
        return [10.0, 9.0]

    model = torch.nn.Linear(2, 2)
    monkeypatch.setattr(proof, "_made", lambda name, *_: ([1, 2], model, lambda state: model, lambda one: one))
    monkeypatch.setattr(proof.decoder, "train", train)
    monkeypatch.setattr(proof.decoder, "tokens_per_second", lambda *_: 100.0 * len(trained))
    for broken_at, ways in ((2, 2), (None, 4)):
        kept = Pieces(tmp_path / "models.jsonl", {"gpu": "g"})
        found = proof.row_of("llama", 2, 1, torch.device("cpu"), (), kept)
        assert len(trained) == ways and capsys.readouterr().out.count("tokens a second") == ways
        assert bool(found["reason"]) == (broken_at is not None)
    assert [found[way] for way in proof.WAYS] == [100.0, 200.0, 300.0, 400.0] and found["apart"] == 0


def test_a_padded_batch_masks_keys_and_labels():
    asked = {}

    class Answer:
        loss = torch.zeros(())

    def model(tokens, attention_mask, labels):
        asked.update(mask=attention_mask, labels=labels)
        return Answer

    tokens = torch.ones((3, 8), dtype=torch.int64)
    hugging_face.step_of(model, padded=True)(tokens, tokens)
    assert asked["mask"].sum(1).tolist() == [8, 6, 4]
    assert torch.equal(asked["labels"] == -100, asked["mask"] == 0)
