import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import run, run_json, train

import diabat.lab.runs.build
import diabat.lab.training
from diabat.lab.config import load_config
from diabat.report import share
from fuzz.faults.session import saved_step


def test_train_writes_the_resolved_configuration_and_reports(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = train(folder, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["steps"], report["run_dir"], report["task"]) == (2, str(folder), "brackets")
    stored = json.loads((folder / "config.json").read_text())
    assert stored.pop("resolved") == {"diabat": diabat.__version__}
    assert {key: report["config"][key] for key in stored} == stored
    assert load_config(folder).output == folder
    again = train(folder)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "expected a new or empty folder" in again.stderr


def test_train_resumes_to_the_same_weights_as_an_uninterrupted_run(tmp_path: Path) -> None:
    assert train(tmp_path / "a", steps=4).exit_code == 0
    assert train(tmp_path / "b", steps=2).exit_code == 0
    result = train(tmp_path / "b", "training.patience=30", "--resume", steps=4)  # limits may change
    assert result.exit_code == 0, result.stderr
    assert "accuracy" in result.stdout
    weights = [diabat.lab.training.load_model(tmp_path / name, "latest") for name in "ab"]
    assert all(bool((weights[0][k] == weights[1][k]).all()) for k in weights[0])


def test_a_run_that_spent_its_budget_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    paid = ["sampler.backend=dimod", "sampler.num_reads=4", f"sampler.cache_dir={tmp_path / 'answers'}"]
    spent = train(tmp_path / "run", *paid, "sampler.max_reads=40")
    assert (spent.exit_code, "max_reads: expected at most 40 reads" in spent.stderr) == (1, True)
    assert train(tmp_path / "run", *paid, "sampler.max_reads=100000", "--resume").exit_code == 0
    counted = (tmp_path / "answers" / "spent.json").read_text()
    assert train(tmp_path / "whole", *paid).exit_code == 0  # an uninterrupted run asks for the same reads
    assert (tmp_path / "answers" / "spent.json").read_text() == counted
    other = train(tmp_path / "run", *paid, "sampler.num_reads=8", "--resume")
    assert "sampler.num_reads: expected 4 as in the run in" in other.stderr


def test_evaluate_counts_the_predictions_of_an_accuracy(tmp_path: Path) -> None:
    assert train(tmp_path / "run").exit_code == 0
    told = run_json("evaluate", str(tmp_path / "run"))
    assert told["count"] == 16  # one closing bracket in each of the words of four
    assert share(told["value"], 16) in run("evaluate", str(tmp_path / "run")).stdout


def test_evaluate_repeats_the_validation_of_the_training(tmp_path: Path) -> None:
    assert train(tmp_path / "run").exit_code == 0
    told = run_json("evaluate", str(tmp_path / "run"), "--split", "validation")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = min((line for line in lines if line["event"] == "epoch"), key=lambda line: line["val_loss"])
    assert (told["task"], told["split"], told["metric"]) == ("brackets", "validation", "accuracy")
    assert (told["value"], told["loss"]) == (best["accuracy"], best["val_loss"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    refused = train(tmp_path / "run", "device=cuda")
    assert refused.exit_code == 2
    assert "device: expected a CUDA device, got none; use device=cpu or device=auto." in refused.stderr


def test_the_folder_of_a_run_is_meant_and_not_the_output_that_it_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs in folders of the same relative name; the second one is where the command is called."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert train(Path("run")).exit_code == 0
    resumed = run("train", "../there/run", "--resume", "training.max_steps=3", "--json", "--no-progress")
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["run_dir"] == "../there/run"
    assert [saved_step(tmp_path / name / "run") for name in ("there", "here")] == [3, 2]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    refused = run("train", str(tmp_path / "there" / "run"), "--no-progress")
    assert refused.exit_code == 1
    assert "expected a new or empty folder" in refused.stderr
    assert not list(Path().iterdir())
    copied = run("train", str(tmp_path / "there" / "run"), "output=copy", "--json", "--no-progress")
    assert json.loads(copied.stdout)["run_dir"] == "copy"


def _failing(error: BaseException, folder: Path | None = None) -> Any:
    def train(*arguments: Any, **options: Any) -> None:
        if folder is not None:
            folder.mkdir()
            (folder / "latest.safetensors").write_bytes(b"")
        raise error

    return train


def test_an_interrupt_prints_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a run"
    stop = diabat.lab.training.TrainingInterrupted("interrupted after step 3.")
    monkeypatch.setattr(diabat.lab.runs.build, "train", _failing(stop))
    result = train(folder, "seed=3")
    assert result.exit_code == 130
    assert (
        f"The run is saved in '{folder}'; continue with: diabat train brackets-t8 task.num_train=32"
        in result.stderr
    )
    assert result.stderr.endswith(" seed=3 --resume\n")
    assert f"'output={folder}'" in result.stderr


@pytest.mark.parametrize("saved", [True, False])
def test_an_interrupt_at_any_other_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(
        diabat.lab.runs.build, "train", _failing(KeyboardInterrupt(), folder if saved else None)
    )
    result = train(folder)
    assert result.exit_code == 130
    assert ("--resume" if saved else "Nothing was saved yet.") in result.stderr


def test_an_evaluation_needs_no_gradient(tmp_path: Path) -> None:
    """Engines and reads without the gradient of the training answer; a training without it names the engine."""
    anneal = ("sampler.backend=dqa", "sampler.schedule=boltzmann-4")
    assert train(tmp_path / "run", *anneal, "gradient=adjoint").exit_code == 0
    values = {
        change: run_json("evaluate", str(tmp_path / "run"), change)["loss"]
        for change in (
            "sampler.engine=native",
            "sampler.engine=aer",
            "sampler.num_reads=20",
            "sampler.backend=exact",
        )
    }
    assert values["sampler.engine=aer"] == pytest.approx(values["sampler.engine=native"], abs=1e-5)
    assert run("evaluate", str(tmp_path / "run"), "sampler.engine=primitive").exit_code == 0
    refused = train(tmp_path / "aer", *anneal, "sampler.engine=aer", "gradient=adjoint")
    sentence = "sampler 'dqa' with engine 'aer' supports linear_response, straight_through, covariance, got 'adjoint'"
    assert (refused.exit_code, sentence in refused.stderr) == (2, True)
    assert train(tmp_path / "aer", *anneal, "sampler.engine=aer").exit_code == 0


def test_a_run_records_what_sampled_it(tmp_path: Path) -> None:
    """In a sentence, and in its folder: the anneal that was resolved, and no section that a training does not read."""
    anneal = ("sampler.backend=dqa", "sampler.annealing_time_ns=2.0", "sampler.num_reads=20")
    said = train(tmp_path / "run", *anneal)
    assert said.exit_code == 0, said.stderr
    sentence = (
        "Sampled by dqa (engine native): the law of the anneal, not the Boltzmann law, 20 reads, gradient "
    )
    assert sentence in " ".join(said.stdout.split())
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert not {"fidelity", "anneal"} & {*stored}
    assert stored["resolved"]["diabat"] == diabat.__version__
    assert stored["resolved"]["anneal"].startswith("Advantage2_system1 (fast), 2 ns, ")
    assert (
        run(
            "evaluate",
            str(tmp_path / "run"),
            "sampler.schedule=boltzmann-4",
            "sampler.annealing_time_ns=null",
        ).exit_code
        == 0
    )
    assert "Sampled by" not in train(tmp_path / "softmax", "model.mode=softmax").stdout
