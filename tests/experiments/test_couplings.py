"""``experiments.couplings``: intervals over seeds at each distance, and the figure of finished runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy.stats import ttest_1samp

from diabat.checks import ArgumentError
from diabat.lab.config import load_config
from diabat.lab.models.learned_couplings import LearnedCouplings
from diabat.lab.runs import run_training
from experiments import couplings
from experiments.couplings import distances, finished, main, ranges

DISTANCE = torch.tensor([k - j for j in range(12) for k in range(j + 1, 12)])


def test_the_two_ranges_have_the_signs_of_their_pairs() -> None:
    random = torch.Generator().manual_seed(0)
    J = 0.01 * torch.randn(4, 66, generator=random) + torch.where(DISTANCE >= 6, -0.02, 0.03)
    found = LearnedCouplings("h+J", DISTANCE, J[:, None, None])
    near, far = ranges(found)
    assert (near["pairs"], far["pairs"]) == (10 + 9 + 8, 6 + 5 + 4 + 3 + 2 + 1)
    assert (near["mean is"], far["mean is"]) == ("above 0", "below 0")
    inside = (DISTANCE >= 2) & (DISTANCE <= 4)
    interval = ttest_1samp(J[:, inside].double().mean(1).numpy(), 0.0).confidence_interval()
    assert near["95 % interval"] == pytest.approx([interval.low, interval.high])
    assert far["negative"] == float((J[:, DISTANCE >= 6] < 0).double().mean())
    rows = distances(found)
    assert [row["pairs"] for row in rows] == [*range(11, 0, -1)]
    assert all(row["p"] <= row["Holm"] <= min(1, 11 * row["p"]) for row in rows)


def test_one_seed_has_no_interval() -> None:
    (row, *_) = distances(LearnedCouplings("h+J", DISTANCE, torch.ones(1, 1, 1, 66)))
    assert (row["95 % interval"], row["mean is"]) == (None, "cannot tell")


def test_a_figure_of_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / f"run{seed}" for seed in range(2)]
    sizes = ["task.num_train=16", "task.num_validation=8", "model.embed_dim=8", "training.max_epochs=1"]
    start = ["model.coupling_init.std=0.1", *sizes]
    for seed, folder in enumerate(folders):
        run_training(load_config("brackets-t12", [*start, f"seed={seed}", f"output={folder}"]))
    monkeypatch.setattr(couplings, "finished", lambda table, output: folders)
    figure = tmp_path / "J.png"
    monkeypatch.setattr("sys.argv", ["couplings", str(figure), "--json"])
    main()
    tables = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(table["rows"]) for table in tables] == [2, 11, 2, 11]
    assert len(tables[0]["rows"][0]["seeds"]) == 2
    assert figure.stat().st_size > 10_000


def test_runs_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"^output: expected finished runs of table3-brackets, row t12-h\+J"
    ):
        finished("table3-brackets", tmp_path)
