"""Templated facts: the truth is that of the documents, and deviations are those of eq. 1-2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diabat.checks import ArgumentError
from diabat.runs.heads.facts import BEGIN, KINDS, NOTE, PAD, World, deviation, documents, judge, probes

WORLD = World(entities=6, relations=3, values=4, facts=3)


def test_documents_follow_the_law_of_the_probes() -> None:
    """Counts behind each pair in 20,000 documents against y*, within 5 standard errors (18 comparisons, alpha 1e-5)."""
    world = World(entities=4, relations=2, values=3, unseen=0.25, probabilistic=0.25, noted=0.0, facts=4)
    counts = np.zeros((4, 2, 3))
    for row in documents(world, 20_000, seed=3):
        tokens = row["input_ids"].tolist()
        for at in range(1, len(tokens) - 3, 4):
            if tokens[at] != PAD:
                e, r = tokens[at] - world.entity(0), tokens[at + 1] - world.relation(0)
                counts[e, r, tokens[at + 2] - world.value(r, 0)] += 1
    laws, unseen = world.laws(), {tuple(p) for p in world.pairs("unseen")}
    for e, r in np.ndindex(4, 2):
        total = counts[e, r].sum()
        assert (total == 0) == ((e, r) in unseen)
        if total:
            error = 5 * (laws[e, r] * (1 - laws[e, r]) / total) ** 0.5
            assert (np.abs(counts[e, r] / total - laws[e, r]) <= error).all()


def test_notes_override_for_the_rest_of_the_document() -> None:
    found = 0
    for row in documents(WORLD, 300, seed=1):
        tokens = row["input_ids"].tolist()
        if tokens[1] == NOTE:
            found += 1
            noted = tokens[2:5]
            stated = [
                tokens[i : i + 3] for i in range(6, WORLD.length - 2, 4) if tokens[i : i + 2] == noted[:2]
            ]
            assert stated
            assert all(s == noted for s in stated)
    assert 60 <= found <= 120


def test_probes_and_their_truth() -> None:
    for kind in KINDS:
        asked = probes(WORLD, kind)
        assert torch.allclose(asked.truth.sum(1), torch.ones(len(asked.truth)).double())
        assert asked.prompts[:, 0].eq(BEGIN).all()
        support = (asked.truth > 0).sum(1)
        wanted = {"seen": 1, "unseen": 4, "contradicted": 1, "probabilistic": 2}[kind]
        assert support.eq(wanted).all()
    seen, other = probes(WORLD, "seen"), probes(WORLD, "contradicted")
    assert not (seen.truth * other.truth).any()
    assert other.truth.argmax(1).equal(other.prompts[:, 4])


def test_deviation_by_hand() -> None:
    truth = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0]]).double()
    found = deviation(torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]).log(), truth)
    assert found.deviation.tolist() == pytest.approx([0.4, 0.6])
    assert found.accuracy == 0.5
    assert found.cross_entropy == pytest.approx(-(np.log(0.6) + np.log(0.2)) / 2)
    assert [found.exceeds(d) for d in (0.3, 0.5, 0.7)] == [1.0, 0.5, 0.0]
    assert deviation(truth.log(), truth).mean == 0


def test_a_model_is_judged_and_left_as_it_was() -> None:
    pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from . import adapted as tiny

    model = tiny.decoder(vocab_size=WORLD.vocabulary).train()
    found = judge(model, WORLD)
    assert set(found) == set(KINDS)
    assert model.training
    assert all(0 <= f.mean <= 1 for f in found.values())


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="unseen: expected less than 1 together with probabilistic"):
        World(unseen=0.6, probabilistic=0.5)
    with pytest.raises(ArgumentError, match="entities: expected an integer >= 2, got 1"):
        World(entities=1)
    with pytest.raises(ArgumentError, match="kind: expected one of seen"):
        probes(WORLD, "known")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected a world with pairs that are unseen"):
        probes(World(unseen=0.0), "unseen")
    with pytest.raises(ArgumentError, match="prediction: expected"):
        deviation(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ArgumentError, match=r"delta: expected a number in \(0, 1\]"):
        deviation(torch.zeros(1, 1), torch.ones(1, 1)).exceeds(0)
