"""Options and figure of ``diabat explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.models.figures import plot_explanation
from diabat.runs import explain_decoder_run, explain_run

from .tiny_pairs import run, run_json


def test_explain_takes_weighting_coalitions_and_seed(trained: Path) -> None:
    words = ("a dog is playing", "the dog is not playing")
    own, again = run_json("explain", str(trained), *words), run_json("explain", str(trained), *words)
    assert own == again
    assert (own["facts"]["weighting"], own["facts"]["coalitions"]) == ("gibbs", 4)
    other = run_json("explain", str(trained), *words, "training.seed=7")
    assert other["facts"]["seed"] != own["facts"]["seed"]
    assert other["shapley"] != own["shapley"]
    assert run_json("explain", str(trained), *words, "training.seed=7") == other
    many = ["model.weighting=uniform", "model.eval_coalitions=400"]
    first, second = (
        run_json("explain", str(trained), *words, *many, f"training.seed={seed}") for seed in "12"
    )
    assert (first["facts"]["weighting"], first["facts"]["coalitions"]) == ("uniform", 400)
    # Shapley values share out v(N) exactly, whatever the coalitions.
    one, two = (torch.tensor(explanation["shapley"]).sum(-1) for explanation in (first, second))
    assert torch.allclose(one, two, rtol=1e-4)
    refused = run("explain", str(trained), *words, "model.weighting=boltzmann")
    assert refused.exit_code == 2
    assert "model.weighting: expected 'gibbs' or 'uniform', got 'boltzmann'" in refused.stderr


def test_the_figure_is_on_the_scale_of_the_law(trained: Path, tmp_path: Path, drawn: list[Any]) -> None:
    explanation = explain_run(trained, "a dog is playing", "the dog is not playing")
    weak, strong = tmp_path / "weak.png", tmp_path / "strong.png"
    plot_explanation(explanation, weak)
    plot_explanation(explanation, strong, at_least=0.0, named=3)
    for figure in drawn:
        bars, pairs = figure.axes[:2]
        (line,) = bars.lines
        assert set(line.get_ydata()) == {0.5}
        assert {patch.get_y() for patch in bars.patches} == {0.5}
        image = pairs.images[0]
        assert torch.allclose(torch.as_tensor(image.get_array().data), explanation.strengths.mean(0))
        assert image.get_clim() == (-0.5, 0.5)  # of weak couplings; not stretched over noise
    assert drawn[0].axes[1].get_xlabel().startswith("No pair has")
    assert "of at least 0.1" in drawn[0].axes[1].get_xlabel()
    assert not drawn[0].axes[1].patches
    assert len(drawn[1].axes[1].patches) == 6
    i, j, J = explanation.strongest(1)[0]
    assert f"{explanation.tokens[i]} and {explanation.tokens[j]} {J:+.2f}" in drawn[1].axes[1].get_xlabel()
    assert weak.stat().st_size > 10_000


def test_a_classifier_takes_two_sentences_and_no_options_of_decoders(trained: Path) -> None:
    for texts in (["one"], ["one", "two", "three"]):
        refused = run("explain", str(trained), *texts)
        assert refused.exit_code == 2
        expected = "expected two texts, premise and hypothesis, for a run of a classifier of sentence pairs"
        assert f"TEXT: {expected}, got {len(texts)}." in refused.stderr
    for option, value in (("--position", "0"), ("--layer", "0")):
        refused = run("explain", str(trained), "one", "two", option, value)
        assert refused.exit_code == 2
        assert f"{option}: expected a run of a decoder, got a run of a classifier" in refused.stderr
    with pytest.raises(ValueError, match="expected a run of a decoder, got one of a classifier of pairs"):
        explain_decoder_run(trained, "a")
