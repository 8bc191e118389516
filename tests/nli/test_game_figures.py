"""What a training logs about the games of NeuroGame pooling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from run_checks import metrics

import diabat
from diabat.tasks import PairTask
from diabat.training import TrainingError, train
from diabat.training.diagnostics import game_figures

from .tiny_pairs import OPTIONS, tiny_model, tiny_train

NAMES = {"effective_samples_phi", "effective_samples_beta", "effective_samples_pairs", "phi_beta_correlation"}


def test_epochs_log_how_well_games_are_estimated(tmp_path: Path, encoder: Path, task: PairTask) -> None:
    tiny_train(tmp_path / "run", encoder, task, OPTIONS)
    epochs = [line for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert len(epochs) == 2
    for line in epochs:
        assert line.keys() >= NAMES
        assert all(1 <= line[name] <= 6 for name in NAMES if name.startswith("effective"))  # of 6 coalitions
        assert -1 <= line["phi_beta_correlation"] <= 1
    assert epochs[0]["effective_samples_phi"] != epochs[1]["effective_samples_phi"]


def test_other_poolings_log_nothing_more(tmp_path: Path, encoder: Path, task: PairTask) -> None:
    tiny_train(tmp_path / "run", encoder, task, OPTIONS, pooling="mean")
    assert not any(NAMES & line.keys() for line in metrics(tmp_path / "run"))


@pytest.mark.parametrize("special", [True, False])
def test_figures_against_the_explanation_token_by_token(encoder: Path, task: PairTask, special: bool) -> None:
    model = tiny_model(encoder, task, special_tokens=special).train()
    with torch.no_grad():
        model.pooling.value.weight *= 20  # type: ignore[union-attr, operator]  # of NeuroGame; weights that differ
    state = torch.get_rng_state()
    figures = game_figures(model, task.validation, seed=5, precision="float32")
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training

    model.eval()
    batch, _ = task.validation.batch(torch.arange(12))
    hidden = model.hidden_positions(batch)
    assert isinstance(model.pooling, diabat.NeuroGameAttention)
    explanation = model.pooling.explain(model.encode(batch), hidden, seed=5)
    samples: dict[str, list[float]] = {"phi": [], "beta": [], "pairs": []}
    correlations = []
    for b in range(12):
        kept = (~hidden[b]).nonzero()[:, 0]
        for h in range(2):
            phi, beta = (
                e.value[b, h, kept].double().numpy() for e in (explanation.shapley, explanation.banzhaf)
            )
            correlations.append(np.corrcoef(phi, beta)[0, 1])
            for name, estimate in (("phi", explanation.shapley), ("beta", explanation.banzhaf)):
                samples[name] += estimate.effective_samples[b, h, kept].tolist()  # type: ignore[index]  # asked for
            pairs = explanation.pairs.effective_samples[b, h][kept][:, kept]  # type: ignore[index]  # as above
            samples["pairs"] += [
                float(pairs[i, j]) for i in range(len(kept)) for j in range(len(kept)) if i != j
            ]
    for name, values in samples.items():
        assert figures[f"effective_samples_{name}"] == pytest.approx(np.mean(values), rel=1e-5)
    assert figures["phi_beta_correlation"] == pytest.approx(np.mean(correlations), rel=1e-6)


def test_states_that_are_not_finite_stop_a_run_with_their_place(
    tmp_path: Path, encoder: Path, task: PairTask
) -> None:
    model = tiny_model(encoder, task)
    with torch.no_grad():
        model.encoder.get_parameter("embeddings.LayerNorm.bias")[3] = float("nan")
    message = (
        r"step 0 \(epoch 0, batch 0\): x: expected finite values, got nan at index \(0, 0, 0\)\. "
        "pooling is neurogame"
    )
    with pytest.raises(TrainingError, match=message):
        train(model, task, OPTIONS, tmp_path / "run", progress=False)
