"""``experiments.reproduce``: a tiny table trained, interrupted, resumed and read; what is computed from its runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from diabat.lab.config import load_config
from diabat.lab.training import TrainingInterrupted, TrainResult
from experiments import reproduce, verdicts
from experiments.common import run_script
from experiments.reproduce import HERE, Entry, Experiment, Outcome, fit_decay, gaps, load, main, plan

YAML = """\
small:
  title: Small
  time: 1 s
  config: brackets-t8
  set: [task.num_train=40, task.num_validation=20, model.embed_dim=8, model.ffn_dim=0, training.batch_size=8,
        training.max_epochs=2, training.coupling_learning_rate=1e-2]
  rows:
    t4: {softmax: [0.5, 0.1], h+J: [0.9, 0.1]}
    t6: {softmax: [0.4, 0.1], fast: [0.8]}
  overrides: {fast: [model.mode=h+J, training.coupling_learning_rate=2e-2]}
  seeds: [3, 4]
"""
TABLES = load()


def commands() -> list[str]:
    """Lines of the documentation that call the script."""
    pages = [HERE.parent / "README.md", *sorted((HERE.parent / "docs").glob("*.md"))]
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    return [line for line in lines if line.startswith("python -m experiments.reproduce")]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "tables.yaml").write_text(YAML)
    return ["small", "--folder", str(tmp_path), "--output", str(tmp_path / "runs"), "--json"]


def printed(capsys: pytest.CaptureFixture[str]) -> list[list[dict[str, Any]]]:
    return [json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines()]


def test_a_table_is_trained_resumed_and_read(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main([*command, "--row", "t6-fast", "--seed", "3", "--output", str(tmp_path / "straight")])
    whole = printed(capsys)[0][-1]

    stopped = Mock(side_effect=TrainingInterrupted("stopped."))
    with monkeypatch.context() as patched:
        patched.setattr(reproduce, "run_training", stopped)
        with pytest.raises(SystemExit, match="130"):
            main([*command, "--row", "t6-fast", "--seed", "3"])
    begun = "run 1 of 1: t6-fast, seed 3\n"  # in place of a bar, which needs a terminal
    assert capsys.readouterr().err == f"{begun}Stopped; repeat the command to continue.\n"
    half = ["training.max_epochs=1"]
    main([*command, "--row", "t6-fast", "--seed", "3", *half])  # limits may change on resumption
    folder = tmp_path / "runs" / "reproduce-small" / "t6-fast-seed3"
    assert load_config(folder / "config.json").training.max_epochs == 1
    told = capsys.readouterr().err
    assert told.startswith(begun)
    assert str(folder) in told
    main([*command, "--row", "t6-fast", "--seed", "3"])
    resumed = printed(capsys)[0][-1]
    assert resumed["metric"] == whole["metric"]
    assert resumed["missing"] == [4]
    main([*command, "--row", "t6-fast", "--seed", "3"])
    assert "run 1 of 1" not in capsys.readouterr().err  # which is finished, and is only read
    stored = load_config(folder / "config.json")
    assert (stored.seed, stored.task.window, stored.training.coupling_learning_rate) == (3, 6, 2e-2)


@pytest.mark.slow
def test_finished_runs_are_read(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command, "--jobs", "2"])
    summary, compared, *_ = printed(capsys)
    assert [row["row"] for row in summary] == ["t4-softmax", "t4-h+J", "t6-softmax", "t6-fast"]
    assert all(len(row["metric"]) == 2 and not row["missing"] for row in summary)
    assert summary[0]["mean"] == pytest.approx(sum(summary[0]["metric"]) / 2)
    assert summary[0]["difference"] == pytest.approx(summary[0]["mean"] / 0.5 - 1)
    assert [row["gap"] for row in compared] == ["t4-h+J - t4-softmax", "t6-fast - t6-softmax"]
    assert compared[0]["difference"] == pytest.approx(summary[1]["mean"] - summary[0]["mean"])
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert weights
    main([*command, "--no-train"])
    assert printed(capsys)[0] == summary
    assert {path: path.stat().st_mtime_ns for path in weights} == weights
    main([*command, "--no-train", "--output", str(tmp_path / "elsewhere")])
    assert {tuple(row["metric"]) for row in printed(capsys)[0]} == {()}
    main(["--folder", str(tmp_path)])
    assert "Small" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "said"), [
    (["model.mode=h"], "override 'model.mode=h': expected a key that the row 't4-softmax' does not set"),
    (["seed=1"], "override 'seed=1'"),
    (["--row", "t9"], "row: expected one of t4-softmax, t4-h+J, t6-softmax, t6-fast, got 't9'"),
    (["model.embed_dm=4"], "Did you mean 'model.embed_dim'"),
])  # fmt: skip
def test_wrong_arguments_are_one_sentence(
    command: list[str], arguments: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=re.escape(said)):
        run_script(partial(main, [*command, *arguments]))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_a_valid_configuration(name: str, tmp_path: Path) -> None:
    table = TABLES[name]
    runs = plan(table, tmp_path, [], [0], [])
    assert [row for row, _, _ in runs] == list(table.entries)
    assert all(row in table.entries for pair in table.gaps for row in pair)
    settings = [config.model_dump_json(exclude={"output"}) for _, _, config in runs]
    assert len({*settings}) == len(settings)  # rows differ
    for row, entry in table.entries.items():
        if entry.window is not None:
            assert f"task.window={entry.window}" in entry.overrides, row


def test_tables_that_share_runs_describe_them_alike(tmp_path: Path) -> None:
    shared: dict[Path, str] = {}
    for table in TABLES.values():
        for _, _, config in plan(table, tmp_path, [], [0], []):
            assert shared.setdefault(config.output, config.model_dump_json()) == config.model_dump_json()


def experiment(**entries: tuple[float | None, float | None]) -> Experiment:
    made = {name: Entry("", name, (), *numbers) for name, numbers in entries.items()}
    return Experiment("", "", "", made, [("a", "b")], "")


def outcomes(**metrics: Sequence[float]) -> list[Outcome]:
    return [
        Outcome(row, k, TrainResult(1.0, "accuracy", m, 1, 1, 1, 1.0, 1.0, Path()))
        for row, own in metrics.items()
        for k, m in enumerate(own)
    ]


def test_gaps_by_hand() -> None:
    runs = outcomes(a=(1.0, 2.0, 3.0), b=(3.0, 3.5))
    (row,), together = gaps(experiment(a=(1.0, 0.2), b=(1.5, 0.2)), runs)
    assert (row["difference"], row["published"], row["inside"], row["verdict"]) == (
        -1.25,
        -0.5,
        True,
        "compatible",
    )
    # t = -1.25 / sqrt(1/3 + 0.125/2) = -1.987 at (0.3958²) / ((1/3)²/2 + 0.0625²/1) = 2.635 degrees of freedom.
    assert row["p"] == row["Holm"] == pytest.approx(0.15369, abs=1e-5)
    assert together == []
    ((row,), _) = gaps(experiment(a=(1.0, 0.2), b=(None, None)), runs[:4])
    assert (row["p"], row["Holm"], row["published"], row["power"], row["verdict"]) == (None,) * 4 + (
        "cannot tell",
    )
    assert gaps(experiment(a=(1.0, 0.2), b=(1.5, 0.2)), runs[:3]) == ([], [])


def test_windows_of_two_arms_are_a_family() -> None:
    entries = {
        f"t{T}-{arm}": Entry(f"t{T}", arm, (), mean)
        for T in (4, 6)
        for arm, mean in (("a", T + 1.0), ("b", 4.0))
    }
    pairs = [("t4-a", "t4-b"), ("t6-a", "t6-b")]
    runs = outcomes(**{"t4-a": (1, 2, 3), "t4-b": (0, 1, 2), "t6-a": (5, 6, 7), "t6-b": (0, 1, 2)})
    rows, (together,) = gaps(Experiment("", "", "", entries, pairs, ""), runs)
    assert [row["Holm"] for row in rows] == verdicts.holm([row["p"] for row in rows])
    assert rows[1]["Holm"] == 2 * rows[1]["p"]
    assert (together["gap"], together["of"]) == ("a - b", "2 windows")
    assert (together["difference"], together["published"]) == pytest.approx(
        (3, 2)
    )  # of 1 and 5, of 1 and 3; equal σ


PAGE = (HERE.parent / "docs/results-attention.md").read_text("utf-8")
TABLES_OF = {"2": ("shakespeare", ""), "6": ("shakespeare", ""), "3": ("brackets", ""), "7": ("brackets", ""),
             "5": ("brackets", ", table 5")}  # fmt: skip


def shown(p: float) -> str:
    """As on the page."""
    return re.sub(r"e-0", "e-", f"{p:.2g}").removeprefix("0")


@pytest.mark.parametrize("number", TABLES_OF)
def test_verdicts_of_the_page_are_those_of_its_seeds(number: str) -> None:
    """Intervals, p, power and words; and those of all windows."""
    task, note = TABLES_OF[number]
    table, scale, places = (
        TABLES[f"table{number}-{task}"],
        100 if task == "brackets" else 1,
        2 if note or task == "brackets" else 4,
    )
    half = PAGE.split("`table3-brackets`")[task == "brackets"].split("**All windows")[0]
    lines = [
        [cell.strip() for cell in line.split("|")] for line in half.splitlines() if line.startswith("| ")
    ]
    cells = {f"t{c[1].removesuffix(note)}-{c[2]}": c for c in lines if c[1].removesuffix(note).isdigit()}
    runs = outcomes(**{row: [float(m) / scale for m in c[3].split(",")] for row, c in cells.items()})
    rows, together = gaps(table, runs)
    whole = [line for line in PAGE.splitlines() if line.startswith(f"| `table{number}-{task}`")]
    assert len(rows) == len(table.gaps)
    for row in [row for row in rows + together if "K" in row["gap"] or number not in "67"]:
        low, high = (f"{scale * end:+.{places}f}" for end in row["95 % interval"])
        difference = f"{scale * row['difference']:+.{places}f}"
        if "of" in row:
            words = [row["gap"], row["of"].split()[0], difference, f"{low} to {high}", shown(row["p"])]
            (line,) = [line for line in whole if f"| {row['gap']} |" in line]
            assert " | ".join(words) in line
            assert line.endswith(f"| {row['verdict']} |")
        else:
            c = cells[row["gap"].split(" - ")[0]]
            assert c[6:9] == [difference, f"{low} to {high}", f"{shown(row['p'])}; {shown(row['Holm'])}"]
            assert (c[10], c[11]) == (f"{row['power']:.0%}".replace("%", " %"), row["verdict"])


def test_the_fit_of_the_published_means() -> None:
    """The paper reports c = 5.51 for softmax and 5.44 for h+J; the difference is 1.4 of its standard errors."""
    entries = TABLES["table2-shakespeare"].entries
    found = {}
    for arm in ("softmax", "h+J"):
        means = {e.window: e.mean for e in entries.values() if e.arm == arm}
        found[arm] = fit_decay({T: mean for T, mean in means.items() if T is not None and mean is not None})
    one, other = found["softmax"], found["h+J"]
    assert one is not None
    assert other is not None
    assert (one["c"], one["± c"]) == pytest.approx((5.506, 0.032), abs=1e-3)
    assert (other["c"], other["± c"]) == pytest.approx((5.443, 0.030), abs=1e-3)
    assert fit_decay({4: 3.0, 8: 2.0, 12: 1.5, 16: 1.2}) is None  # four windows
    assert fit_decay({k: 1.0 + 0.1 * (-1) ** k for k in range(6)}) is None  # no decay


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_documentation_name_tables_rows_and_keys(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(reproduce, "show", lambda *arguments: seen.append(arguments))
    main(shlex.split(line, comments=True)[3:])
    for table, options in seen:
        assert plan(table, options.output, options.row, options.seed, options.overrides)


def test_what_a_script_refuses_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and from a worker; every script with a command line is run that way."""
    monkeypatch.setenv("DIABAT_DATA", str(tmp_path))
    for jobs in ("1", "2"):
        given = ["table2-shakespeare", "--row", "t8-softmax", "--seed", "0", "--output", str(tmp_path / "r")]
        with pytest.raises(SystemExit, match=r"^DIABAT_DATA: expected the file .*, got none; get tinyshakes"):
            run_script(partial(main, [*given, "--jobs", jobs]))
    with pytest.raises(SystemExit, match=r"^'.*none': No such file or directory\.$"):
        run_script(partial(open, tmp_path / "none"))
    scripts = [path.read_text("utf-8") for path in sorted(HERE.rglob("*.py"))]
    assert not [
        text for text in scripts if "__main__" in text and not text.endswith("    run_script(main)\n")
    ]
