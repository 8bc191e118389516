"""``diabat train``, ``evaluate`` and ``explain`` on sentence pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.config import load_config, make_config, to_plain
from diabat.runs import evaluate_run, explain_run, load_run
from diabat.studies.report import share
from diabat.training.folder import BEST, LATEST
from experiments.reproduce import main as reproduce

from .tiny_pairs import make_data, run, run_json, small


def test_the_stored_configuration_is_complete_and_read_back(trained: Path) -> None:
    config = load_config(trained)
    assert to_plain(make_config(to_plain(config))) == to_plain(config)
    assert (config.training.mixup, config.training.warmup, config.training.decay_epochs) == (0.2, 0.1, (3, 4))
    assert config.sampler.backend == "mean_field"
    assert config.sampler.options == {"damping": 0.7, "max_iterations": 25, "tolerance": 1e-4}


def test_evaluate_reports_scores_of_the_test_set(trained: Path, tmp_path: Path) -> None:
    told = run_json("evaluate", str(trained), "--figure", str(tmp_path / "scores.png"))
    assert (told["task"], told["split"], told["metric"]) == ("pairs", "test", "accuracy")
    assert told["scores"]["count"] == 9
    assert (told["value"], told["count"]) == (told["scores"]["accuracy"], 9)
    assert sum(map(sum, told["scores"]["confusion"])) == 9
    assert (tmp_path / "scores.png").stat().st_size > 5_000
    shown = run("evaluate", str(trained))
    for word in (
        "pairs, test set",
        share(told["value"], 9),
        "macro F1",
        "calibration error, 15 bins",
        "Brier score",
        "as contradiction",
    ):
        assert word in shown.stdout


def test_pairs_without_agreed_label_are_counted_aloud(tmp_path: Path, encoder: Path) -> None:
    folder = make_data(tmp_path / "data")
    for name, count in (("train", 2), ("test", 1)):
        with open(folder / f"{name}.csv", "a", encoding="utf-8") as file:
            file.write("a man,a dog,-\n" * count)
    path = str(small(tmp_path / "a", encoder, folder, training__max_steps=1))
    trained = run("train", path, "--no-progress")
    assert "left out without agreed label" in trained.stdout
    assert "2 of train, 1 of test" in trained.stdout
    told = run_json("evaluate", str(tmp_path / "a" / "run"))
    assert (told["dropped"], told["scores"]["count"]) == (1, 9)
    assert "left out without agreed label" in run("evaluate", str(tmp_path / "a" / "run")).stdout


def test_evaluate_repeats_the_validation_of_the_training(trained: Path) -> None:
    told = run_json("evaluate", str(trained), "--split", "validation")
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert told["value"] == pytest.approx(lines[-1]["accuracy"], abs=1e-12)
    assert told["loss"] == pytest.approx(lines[-1]["val_loss"], rel=1e-5)


def test_the_last_checkpoint_gives_its_averaged_weights(trained: Path) -> None:
    runs = [load_run(trained / BEST), load_run(trained / LATEST)]
    weights = [dict(r.model.state_dict()) for r in runs]
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
    assert evaluate_run(runs[0], "train").scores == evaluate_run(runs[1], "train").scores


def test_explain_shows_tokens_and_interactions(trained: Path, tmp_path: Path) -> None:
    words = ("a dog is playing", "the dog is not playing")
    told = run_json("explain", str(trained), *words, "--figure", str(tmp_path / "told.png"))
    tokens = ["[CLS]", *words[0].split(), "[SEP]", *words[1].split(), "[SEP]"]
    assert told["tokens"] == tokens
    assert told["sides"] == ["special", *["premise"] * 4, "special", *["hypothesis"] * 5, "special"]
    assert sum(told["probabilities"].values()) == pytest.approx(1)
    assert told["predicted"] == max(told["probabilities"], key=told["probabilities"].get)
    for name in ("alpha", "fields", "shapley", "banzhaf", "gate"):
        assert torch.tensor(told[name]).shape == (2, 12)
    J = torch.tensor(told["interactions"])
    assert J.shape == (2, 12, 12)
    assert torch.equal(J, J.mT)
    assert sum(told["alpha"][0]) == pytest.approx(told["facts"]["expected_active"][0], rel=1e-5)
    assert told["facts"]["coalitions"] == 4
    # J_i = λ φ/Σ|φ| + (1 - λ) β/Σ|β|
    phi, beta, gate = (torch.tensor(told[name]) for name in ("shapley", "banzhaf", "gate"))
    shares = [x / x.abs().sum(-1, keepdim=True) for x in (phi, beta)]
    assert torch.allclose(torch.tensor(told["fields"]), gate * shares[0] + (1 - gate) * shares[1], atol=1e-6)
    assert (tmp_path / "told.png").stat().st_size > 10_000
    shown = run("explain", str(trained), *words, "--head", "1", "--top", "3")
    assert shown.stdout.startswith(f"Predicted: {told['predicted']} (entailment 0.")
    for word in ("Tokens, neurogame pooling, head 1", "expected active", "weighting: gibbs", "λ"):
        assert word in shown.stdout
    i, j, strongest = explain_run(trained, *words).strongest(1, 1)[0]
    assert abs(strongest) == pytest.approx(float(J[1].abs().max()) / 0.25)  # J/γ
    assert i < j
    assert "No interaction with |J_ij|/γ of at least 0.1." in shown.stdout
    named = run("explain", str(trained), *words, "--head", "1", "--top", "3", "--at-least", "0")
    assert "Strongest interactions, |J_ij|/γ of at least 0" in named.stdout
    assert f"{strongest:+.4f}" in named.stdout
    assert "interaction" not in run("explain", str(trained), *words, "--top", "0").stdout


@pytest.mark.parametrize("pooling", ["mean", "softmax", "boltzmann", "projected_mean"])
def test_every_pooling_can_be_explained(tmp_path: Path, encoder: Path, data: Path, pooling: str) -> None:
    path = small(tmp_path / "a", encoder, data, model__pooling=pooling, model__special_tokens=False)
    assert run("train", str(path), "--no-progress").exit_code == 0
    told = run_json(
        "explain", str(tmp_path / "a" / "run"), "a dog", "the cat", "--figure", str(tmp_path / "a.svg")
    )
    assert told["tokens"] == ["a", "dog", "the", "cat"]
    assert (told["interactions"] is None) == (pooling != "boltzmann")
    if pooling == "boltzmann":
        assert sum(told["alpha"][1]) == pytest.approx(told["facts"]["expected_active"][1], rel=1e-5)
    else:
        assert [sum(row) for row in told["alpha"]] == pytest.approx([1.0] * len(told["alpha"]))


def test_other_models_report_their_own_metric(tmp_path: Path) -> None:
    limits = ["task.num_train=16", "task.num_validation=8", "task.window=4", "training.max_steps=1"]
    sizes = ["model.embed_dim=8", "model.ffn_dim=0"]
    folder = str(tmp_path / "run")
    assert run("train", "brackets-t8", *limits, *sizes, f"output={folder}", "--no-progress").exit_code == 0
    told = run_json("evaluate", folder)
    assert (told["task"], told["split"], told["metric"], told["scores"]) == (
        "brackets",
        "validation",
        "accuracy",
        None,
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert told["value"] == pytest.approx(lines[-1]["accuracy"])
    refused = run("evaluate", folder, "--split", "test")
    assert refused.exit_code == 2
    assert "--split: expected one of train, validation for the task 'brackets', got 'test'" in refused.stderr
    refused = run("explain", folder, "a", "b")
    assert refused.exit_code == 2
    assert "TEXT: expected one text in quotation marks for a run of a decoder, got 2." in refused.stderr
    refused = run("evaluate", folder, "--figure", str(tmp_path / "a.png"))
    assert "--figure: expected a classifier of sentence pairs" in refused.stderr


def test_a_reproduced_table_reports_the_test_set(
    tmp_path: Path, encoder: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(tmp_path / "a", encoder, data)
    table = {"title": "t", "time": "", "config": str(config), "split": "test", "rows": {"mean": None}, "seeds": [0],
             "overrides": {"mean": ["model.pooling=mean"]}}  # fmt: skip
    (tmp_path / "tables.yaml").write_text(json.dumps({"e": table}))
    reproduce(["e", "--folder", str(tmp_path), "--output", str(tmp_path / "runs"), "--json"])
    (row,) = json.loads(capsys.readouterr().out.splitlines()[0])["rows"]
    folder = str(tmp_path / "runs" / "reproduce-e" / "mean-seed0")
    assert row["metric"] == [run_json("evaluate", folder, "--split", "test")["value"]]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model__pooling": "men"},
     "model.pooling: expected one of neurogame, mean, softmax, boltzmann, projected_mean, got 'men'. Did"),
    ({"model__mode": "J"}, "model.mode: expected 'h+J', 'h' or 'uniform', got 'J'"),
    ({"model__mode": "h", "model__pooling": "mean"}, "model.mode: expected 'h+J' with pooling 'mean', got 'h'."),
    ({"model__encoder": "/no/such"}, "model.encoder: expected the name of a model or a folder, got '/no/such'"),
    ({"model__encoder": "no/such-model"}, "model.encoder: expected the name or folder of a tokenizer"),
    ({"model__encoder": "package:no_such"}, "model.encoder: expected an installed Python package, got 'no_such'"),
    ({"model__tokenizer": "no/such-model"}, "model.tokenizer: expected the name or folder of a tokenizer"),
    ({"model__num_heads": 3}, "model.embed_dim: expected a multiple of num_heads = 3, got 16."),
    ({"model__encoder_config": {"no_such": 1}}, "model.encoder_config.no_such: unknown key of a 'bert'"),
    ({"task__window": 25}, "task.window: expected at most 24, the encoder's positions, got 25."),
    ({"task__window": 4}, "task.window: expected at least 5 for this tokenizer, got 4."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_configurations_are_one_sentence(
    tmp_path: Path, encoder: Path, data: Path, change: dict[str, Any], message: str
) -> None:
    result = run("train", str(small(tmp_path / "a", encoder, data, **change)), "--no-progress")
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "a" / "run").exists()


def test_bad_data_are_one_sentence(tmp_path: Path, encoder: Path) -> None:
    data = make_data(tmp_path / "data")
    (data / "validation.csv").write_text("premise,hypothesis\na,b\n")
    refused = run("train", str(small(tmp_path / "a", encoder, data)), "--no-progress")
    assert refused.exit_code == 1
    expected = "premise, hypothesis, label, once each, got premise, hypothesis."
    assert f"validation.csv': expected the columns {expected}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explain", "RUN", "a", " "], 1, "hypothesis: expected a sentence, got an empty one."),
        (["explain", "RUN", "a", "a", "--head", "2"], 2, "--head: expected a head in 0 .. 1, got 2."),
        (["evaluate", "RUN", "--split", "dev"], 2, "--split: expected one of train, validation, test for"),
        (["evaluate", "tests"], 2, "folder of a run or one of its checkpoints, got a folder without config.json."),
        (["evaluate", "no/such"], 2, "one of its checkpoints, got a path that does not exist."),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_sentence(
    trained: Path, arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    refused = run(*(str(trained) if word == "RUN" else word for word in arguments))
    assert (refused.exit_code, refused.stderr.count("\n")) == (code, 1)
    assert refused.stderr.startswith("Error: ")
    assert message in refused.stderr


def test_random_encoders_follow_the_changed_configuration(tmp_path: Path, encoder: Path, data: Path) -> None:
    changes = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 8}
    path = small(tmp_path / "a", encoder, data, model__pretrained=False, model__encoder_config=changes)
    assert run("train", str(path), "--no-progress").exit_code == 0
    model = load_run(tmp_path / "a" / "run").model
    names = [n for n, _ in model.named_parameters() if n.startswith("encoder.encoder.layer.1.")]
    assert names
    assert next(model.parameters()).shape == (18, 8)


def test_cuda_is_refused_where_there_is_none(tmp_path: Path, encoder: Path, data: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    refused = run("train", str(small(tmp_path / "a", encoder, data)), "device=cuda", "--no-progress")
    assert refused.exit_code == 2
    assert "device: expected a CUDA device, got none; use device=cpu or device=auto." in refused.stderr
