"""Tasks of lm-eval, offline: a task of our own on local JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diabat.attention.heads import Calibration
from diabat.checks import ArgumentError
from diabat.huggingface import disable_gac, enable_gac
from diabat.runs.heads.evaluation.harness import evaluate_tasks

from .tiny import decoder, films, tokenizer

pytest.importorskip("lm_eval", reason="the extra 'eval' is not installed")
# Of lm-eval and what it imports.
pytestmark = pytest.mark.filterwarnings("ignore")

CALIBRATION = Calibration({1: [0, 1], 2: []}, alpha=0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    questions = [
        {"question": film["text"].strip(), "label": film["choices"].index(film["label"])}
        for film in films(20)
    ]
    (tmp_path / "films.json").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (tmp_path / "films.yaml").write_text(
        f"""
task: own_films
dataset_path: json
dataset_kwargs:
  data_files: {{test: {tmp_path / "films.json"}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: [good, bad, fine]
doc_to_target: label
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
    )
    return tmp_path


def hits(model: Any) -> np.ndarray:
    """Right answers by the first token, one question at a time; choices are words of one token."""
    encode, found = tokenizer(), []
    for film in films(20):
        tokens = torch.tensor([encode(film["text"])["input_ids"]])
        first = [encode(choice)["input_ids"][0] for choice in film["choices"]]
        with torch.no_grad():
            found.append(film["choices"][int(model(tokens).logits[0, -1, first].argmax())] == film["label"])
    return np.array(found, dtype=float)


def test_scores_off_and_on_and_their_paired_difference(folder: Path) -> None:
    model = decoder()
    off = hits(model)
    enable_gac(model, CALIBRATION)
    on = hits(model)
    disable_gac(model)
    report = evaluate_tasks(model, tokenizer(), ["own_films"], CALIBRATION, folder=folder, batch_size=4)
    before, row = report.rows
    assert (row["task"], row["metric"], row["samples"]) == ("own_films", "acc", 20)
    assert (before["state"], row["state"]) == ("off", "calibrated")
    assert before["score"] == pytest.approx(off.mean())
    assert row["score"] == pytest.approx(on.mean())
    assert row["chance"] == pytest.approx(1 / 3)
    assert row["relative"] == pytest.approx(on.mean() / off.mean() - 1)
    assert row["difference"] == pytest.approx((on - off).mean())
    assert row["difference_error"] == pytest.approx((on - off).std(ddof=1) / 20**0.5)
    assert (on != off).any()
    assert before["score_error"] == pytest.approx(off.std(ddof=1) / 20**0.5)
    assert json.loads(report.to_json())["rows"][0]["task"] == "own_films"
    alone = evaluate_tasks(model, tokenizer(), ["own_films"], None, folder=folder, limit=5)
    assert alone.rows[0]["samples"] == 5
    assert len(alone.rows) == 1


def test_what_lm_eval_cannot_do_is_refused(folder: Path) -> None:
    model = decoder()
    with pytest.raises(ArgumentError, match="task_folder: expected a folder with tasks of lm-eval"):
        evaluate_tasks(model, tokenizer(), ["own_films"], None, folder=folder / "none")
    with pytest.raises(ArgumentError, match=r"tasks: .* got 'hellasvag'\. Did you mean 'hellaswag'"):
        evaluate_tasks(model, tokenizer(), ["hellasvag"], None)
    with pytest.raises(
        ArgumentError, match="tokenizer: expected that of the model for tasks of lm-eval, got none"
    ):
        evaluate_tasks(model, None, ["own_films"], None)
    with pytest.raises(
        ArgumentError, match="calibration: expected rows='running' for the likelihoods of lm-eval"
    ):
        evaluate_tasks(model, tokenizer(), ["own_films"], Calibration({1: []}, rows="prompt"), folder=folder)
