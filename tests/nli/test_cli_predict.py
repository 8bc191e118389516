"""``diabat predict``: sentence pairs without labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import diabat
from diabat.runs import load_classifier, load_run
from diabat.runs.predict import predict_pairs, read_unlabelled
from diabat.samplers import UnsupportedError
from diabat.tasks import PairOptions
from diabat.tasks.nli_files import Columns
from diabat.training.evaluate import predict

from .tiny_pairs import run

CLASSES = ["entailment", "neutral", "contradiction"]


def write(folder: Path, suffix: str, rows: list[tuple[str, str]]) -> Path:
    """A file of pairs with one column more."""
    path, names = folder / f"pairs.{suffix}", ("id", "hypothesis", "premise")
    cells = [(str(i), hypothesis, premise) for i, (premise, hypothesis) in enumerate(rows)]
    if suffix == "jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in cells]
    else:
        lines = [("," if suffix == "csv" else "\t").join(row) for row in (names, *cells)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


PAIRS = [
    ("a man is playing", "the man is not playing"),
    ("a dog is sleeping with a cat", "a cat"),
    ("nobody", "a man is playing the guitar"),
]


@pytest.mark.parametrize("suffix", ["jsonl", "tsv", "csv", "txt"])
def test_every_format_gives_the_predictions_of_the_model(trained: Path, tmp_path: Path, suffix: str) -> None:
    """Those of the test set of its task, in the order of the file."""
    loaded = load_run(trained)
    assert loaded.task.test is not None
    logits, _ = predict(loaded.model, loaded.task.test, seed=loaded.config.training.seed)
    assert isinstance(loaded.config.task, PairOptions)
    source = Path(loaded.config.task.data or "") / "test.csv"
    rows = [line.split(",")[:2] for line in source.read_text().splitlines()[1:]]
    path = write(tmp_path, suffix, [(p, h) for p, h in rows])
    done = run("predict", str(trained), str(path), "--no-progress")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(t["premise"], t["hypothesis"]) for t in told] == [(p, h) for p, h in rows]
    chances = torch.tensor([[t["probabilities"][c] for c in CLASSES] for t in told], dtype=torch.float64)
    assert torch.allclose(chances, logits.double().softmax(-1), atol=1e-12)
    assert [t["label"] for t in told] == [CLASSES[c] for c in chances.argmax(1).tolist()]


def test_files_hold_the_same_as_standard_output(trained: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "tsv", PAIRS)
    lines = run("predict", str(trained), str(path), "--no-progress").stdout
    out, table = tmp_path / "new" / "out.jsonl", tmp_path / "out.tsv"
    shown = run("predict", str(trained), str(path), "--output", str(out))
    assert shown.exit_code == 0, shown.stderr
    assert f"Written: {out}" in shown.stdout
    assert "Predictions, 3 pairs" in shown.stdout
    assert "pairs" in shown.stderr  # the progress bar
    assert out.read_text(encoding="utf-8") == lines
    assert run("predict", str(trained), str(path), "--output", str(table)).exit_code == 0
    header, *rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    assert header == ["premise", "hypothesis", "label", *CLASSES]
    for row, line in zip(rows, map(json.loads, lines.splitlines()), strict=True):
        assert row[:3] == [line["premise"], line["hypothesis"], line["label"]]
        assert [float(c) for c in row[3:]] == pytest.approx(list(line["probabilities"].values()), abs=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "out.tsv", "pairs.tsv"]
    again = run("predict", str(trained), str(table), "--no-progress")  # reads what it wrote
    assert again.stdout == lines


def test_json_is_one_document(trained: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", PAIRS)
    arguments = ["predict", str(trained), str(path), "--json", "--no-progress"]
    told = json.loads(run(*arguments).stdout)
    assert (told["pairs"], told["classes"], told["output"]) == (3, CLASSES, None)
    assert sum(told["counts"].values()) == 3 == len(told["predictions"])
    written = json.loads(run(*arguments, "--output", str(tmp_path / "out.jsonl")).stdout)
    assert (written["predictions"], written["output"]) == (None, str(tmp_path / "out.jsonl"))


def test_columns_can_be_named(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sentence_A,sentence_B\na man,a dog\n")
    columns = ["--premise", "sentence_A", "--hypothesis", "sentence_B"]
    done = run("predict", str(trained), str(path), *columns, "--no-progress")
    assert json.loads(done.stdout)["premise"] == "a man"
    refused = run("predict", str(trained), str(path), "--no-progress")
    assert refused.exit_code == 1
    assert (
        "a.csv': expected the columns premise, hypothesis, once each, got sentence_A, sentence_B."
        in refused.stderr
    )


def refusals(folder: Path) -> list[tuple[list[str], int, str]]:
    good = str(write(folder, "tsv", PAIRS))
    (folder / "empty.csv").write_text("premise,hypothesis\n")
    (folder / "half.csv").write_text("premise,hypothesis\na,b\nc,\n")
    (folder / "tabs.csv").write_text('premise,hypothesis\na,b\n"a\tman",b\n')
    (folder / "there.jsonl").write_text("kept")
    return [
        ([str(folder / "none.csv")], 1, "none.csv': cannot be read (No such file"),
        ([str(folder / "empty.csv")], 1, "empty.csv': expected sentence pairs, got none."),
        ([str(folder / "half.csv")], 1, "half.csv', line 3: hypothesis: expected a sentence"),
        ([good, "--output", str(folder / "a.csv")], 2, "--output: expected a file ending in .jsonl, .tsv"),
        ([good, "--output", str(folder / "there.jsonl")], 2, "--output: expected a new file, or --force"),
        (
            [str(folder / "tabs.csv"), "--output", str(folder / "a.tsv")],
            2,
            "--output: expected sentences without tabs and line breaks for a .tsv file, got pair 2 with one",
        ),
    ]  # fmt: skip


def test_refusals_are_one_sentence_and_leave_no_file(trained: Path, tmp_path: Path) -> None:
    for arguments, code, message in refusals(tmp_path):
        before = sorted(p.name for p in tmp_path.iterdir())
        refused = run("predict", str(trained), *arguments, "--no-progress")
        assert message in refused.stderr
        assert (refused.exit_code, refused.stderr.count("\n"), refused.stdout) == (code, 1, "")
        assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert (tmp_path / "there.jsonl").read_text() == "kept"
    forced = [str(tmp_path / "pairs.tsv"), "--output", str(tmp_path / "there.jsonl"), "--force"]
    assert run("predict", str(trained), *forced, "--no-progress").exit_code == 0
    assert len((tmp_path / "there.jsonl").read_text().splitlines()) == 3


def test_runs_of_other_models_are_refused(tmp_path: Path) -> None:
    limits = ["task.num_train=16", "task.num_validation=8", "task.window=4", "training.max_steps=1"]
    folder = str(tmp_path / "run")
    assert run("train", "brackets-t8", *limits, f"output={folder}", "--no-progress").exit_code == 0
    refused = run("predict", folder, str(write(tmp_path, "tsv", PAIRS)))
    assert refused.exit_code == 2
    assert "expected a run of a classifier of sentence pairs, got the task 'brackets'" in refused.stderr


def test_pairs_too_long_for_enumeration_are_refused_first(trained: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "tsv", PAIRS)
    budget = 1.9 * 2.0**12 / 2**22  # two heads; the pairs have 12, 12 and 10 tokens
    classifier = load_classifier(trained)
    pooling = classifier.model.pooling
    assert isinstance(pooling, diabat.NeuroGameAttention)
    pooling.use_sampler(diabat.sampler("exact", memory_budget_mb=budget))
    pairs, split = read_unlabelled(path, classifier, Columns())
    asked: list[int] = []
    with pytest.raises(UnsupportedError, match=r"^sampler: 'exact' enumerates 2\^n states"):
        predict_pairs(classifier, pairs, split, asked.append)
    assert not asked
