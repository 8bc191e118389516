"""The classifier of sentences through the command line: train, resume, evaluate, explain, fidelity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run, run_json
from run_checks import metrics, same_weights, torchrun

from diabat.lab.training import load_model

SMALL = ["model.embed_dim=8", "model.num_heads=2", "model.num_layers=1", "training.batch_size=16"]
GRAMMAR = ["task.num_train=48", "task.num_validation=12"]
PAIR = ["all dogs ran", "not all dogs ran"]
BACKENDS = {
    "exact": [],
    "mean_field": [],
    "tempering": ["sampler.sweeps=20"],
    "dqa": ["sampler.annealing_time_ns=1"],
    "reads": ["sampler.num_reads=10"],
    "aer": ["sampler.engine=aer", "sampler.annealing_time_ns=1", "sampler.num_reads=10"],
}


def train(folder: Path, *options: str, steps: int = 2, config: str = "pairs-neurogame") -> list[str]:
    limits = [
        f"training.max_steps={steps}",
        "training.checkpoint_every=1",
        f"output={folder}",
        "--no-progress",
    ]
    found = run("train", config, *SMALL, *([] if config == "pairs" else GRAMMAR), *limits, *options)
    assert found.exit_code == 0, found.stderr
    return found.stdout.splitlines()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "run"
    assert any("neurogame h+J with exact" in line for line in train(folder))
    return folder


def test_a_run_is_evaluated_with_each_class(trained: Path) -> None:
    found = run_json("evaluate", str(trained))
    assert (found["task"], found["split"], found["metric"], found["count"]) == (
        "pairs",
        "validation",
        "accuracy",
        12,
    )
    assert {*found["parts"]} == {"entailment", "neutral", "contradiction"}
    assert found["value"] == pytest.approx(sum(found["parts"].values()) / 3)
    (last,) = [line for line in metrics(trained)[-2:] if line["event"] == "epoch"]
    assert found["value"] == last["accuracy"]


def test_explain_prints_tokens_and_couplings_and_draws_them(trained: Path, tmp_path: Path) -> None:
    figure = tmp_path / "why.png"
    shown = run("explain", str(trained), *PAIR, "--figure", str(figure))
    assert shown.exit_code == 0, shown.stderr
    said = " ".join(shown.stdout.split())
    for part in ("Pooling neurogame h+J, sampler exact", "Predicted: ", "position token P(s = +1) h φ β λ", "[SEP]",
                 "Strongest couplings, mean over heads", "Estimated from K = 25 coalitions"):  # fmt: skip
        assert part in said
    assert figure.stat().st_size > 10_000
    found = run_json("explain", str(trained), *PAIR)
    assert found["tokens"] == [*PAIR[0].split(), "[SEP]", *PAIR[1].split()]
    assert len(found["couplings"]) == len(found["fields"]) == len(found["shapley"]) == 2
    assert found == run_json("explain", str(trained), *PAIR)
    assert found["alpha"] != run_json("explain", str(trained), *PAIR, "training.seed=7")["alpha"]


@pytest.mark.parametrize(("arguments", "message"), [
    (PAIR[:1], "sentences: expected 2 sentences, got 1."),
    ([*PAIR, "a"], "sentences: expected 2 sentences, got 3."),
    ([PAIR[0], " "], "sentences: expected at least one word in each, got ' '."),
    (["all " * 9, "a"], "sentences: expected at most 9 tokens, got 11."),
    ([*PAIR, "--layer", "0"], "layer: expected none for sentences, whose pooling has one query in one layer, got 0."),
    (["--couplings"], "expected a run that learns J of positions, got one with attention neurogame h+J."),
    ([*PAIR, "--head", "2"], "head: expected a head in 0 .. 1, got 2."),
])  # fmt: skip
def test_what_cannot_be_explained_is_refused(trained: Path, arguments: list[str], message: str) -> None:
    found = run("explain", str(trained), *arguments)
    assert found.exit_code != 0
    assert message in " ".join(found.stderr.split())


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_trains_and_explains(backend: str, tmp_path: Path) -> None:
    name = "dqa" if backend in ("reads", "aer") else backend
    train(tmp_path / "run", f"sampler.backend={name}", *BACKENDS[backend], steps=1)
    found = run_json("explain", str(tmp_path / "run"), *PAIR)
    assert found["sampler"] == name
    assert all(0 < P < 1 for head in found["alpha"] for P in head)


@pytest.mark.parametrize("pooling", ["boltzmann", "softmax", "mean"])
def test_other_poolings_train_and_explain(pooling: str, tmp_path: Path) -> None:
    train(tmp_path / "run", f"model.pooling={pooling}")
    figure = tmp_path / "why.svg"
    shown = run("explain", str(tmp_path / "run"), *PAIR, "--figure", str(figure))
    assert shown.exit_code == 0, shown.stderr
    assert figure.exists()
    assert ("Strongest couplings" in shown.stdout) == (pooling == "boltzmann")
    couplings = run("explain", str(tmp_path / "run"), "--couplings")
    assert (couplings.exit_code == 0) == (pooling == "boltzmann"), couplings.stderr


def test_fidelity_takes_the_problems_of_a_run(trained: Path, tmp_path: Path) -> None:
    small = ["fidelity.ensembles=[]", "--no-progress"]
    rows = run_json("fidelity", f"fidelity.checkpoint={trained}", *small)["rows"]
    assert {row["ensemble"] for row in rows} == {"trained, layer 1"}
    assert {row["queries"] for row in rows} == {24}  # 12 pairs, two heads
    train(tmp_path / "mean", "model.pooling=mean")
    refused = run("fidelity", f"fidelity.checkpoint={tmp_path / 'mean'}", *small)
    assert "fidelity.checkpoint: expected a run with couplings, got" in refused.stderr


def test_a_run_on_a_file_is_resumed_and_keeps_its_words(tmp_path: Path) -> None:
    rows = [f"a dog {verb}\ta cat {verb}\t{('yes', 'no')[i % 2]}" for i, verb in enumerate("abcdefgh" * 3)]
    data = tmp_path / "a.tsv"
    data.write_text("\n".join(["first\tsecond\tlabel", *rows]))
    options = [f"task.data={data}", "task.min_count=1", "model.dropout=0.1"]
    train(tmp_path / "whole", *options, steps=4, config="pairs")
    train(tmp_path / "parts", *options, steps=2, config="pairs")
    train(tmp_path / "parts", *options, "--resume", steps=4, config="pairs")
    assert same_weights(load_model(tmp_path / "whole", "latest"), load_model(tmp_path / "parts", "latest"))
    stored = json.loads((tmp_path / "whole" / "config.json").read_text())["task"]
    assert (stored["classes"], stored["window"]) == (["no", "yes"], 7)
    other = tmp_path / "b.jsonl"
    other.write_text('{"first": "a zebra", "second": "a dog", "label": "no"}')
    assert run_json("evaluate", str(tmp_path / "whole"), f"task.test={other}")["count"] == 1
    other.write_text('{"first": "a zebra", "second": "a dog", "label": "maybe"}')
    refused = run("evaluate", str(tmp_path / "whole"), f"task.test={other}")
    assert "task.test: line 1 of" in refused.stderr
    assert run(
        "train", "pairs", *options, *SMALL, f"output={tmp_path}/parts", "--resume", "task.window=9"
    ).exit_code
    assert "[UNK]" in run("explain", str(tmp_path / "whole"), "a zebra", "a dog").stdout


def test_a_backend_that_is_too_small_is_refused_before_the_first_step(tmp_path: Path) -> None:
    data = tmp_path / "a.tsv"
    long = " ".join(["a"] * 40)
    data.write_text(
        "\n".join(["first\tsecond\tlabel", "a\tb\tyes", "a\tc\tno", "a\td\tno", f"{long}\tb\tyes"])
    )
    refused = run(
        "train", "pairs", f"task.data={data}", "sampler.backend=exact", f"output={tmp_path / 'run'}"
    )
    assert "sampler: 'exact' accepts at most" in " ".join(refused.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    """Without what each process draws for itself."""
    options = ["model.pooling=boltzmann", "training.max_epochs=2", *SMALL, *GRAMMAR]
    train(tmp_path / "one", *options, steps=6)
    for name, pooling in (("two", "boltzmann"), ("game", "neurogame")):
        given = (*options, f"model.pooling={pooling}", f"output={tmp_path / name}", "training.max_steps=6")
        torchrun("-m", "diabat", "train", "pairs-neurogame", *given, "--no-progress")
    one, two, game = (
        [line for line in metrics(tmp_path / name) if line["event"] == "epoch"]
        for name in ("one", "two", "game")
    )
    assert len(one) == len(two) == len(game) == 2
    for a, b in zip(one, two, strict=True):
        assert a.pop("event") == b.pop("event")
        assert a == pytest.approx(b, abs=1e-4)
