"""Published tables in YAML: rows, gaps, series, refusals; the shipped ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diabat.checks import ArgumentError
from diabat.config import ConfigError, load_config
from diabat.runs.experiments import load_experiment, shipped_experiments
from diabat.runs.reproduction.table import rows_of_table

TABLE = {"t4": {"softmax": [6.775, 0.031], "h+J": [6.776]}, "t8": {"softmax": [5.894, 0.027], "h+J": None}}


def test_a_table_becomes_rows_gaps_and_series() -> None:
    made = rows_of_table({"title": "x", "table": TABLE})
    assert made["published"] == {"t4-softmax": 6.775, "t4-h+J": 6.776, "t8-softmax": 5.894, "t8-h+J": None}
    assert made["published_std"]["t4-softmax"] == 0.031
    assert made["published_std"]["t4-h+J"] is None
    assert made["variants"]["t8-h+J"] == ["task.window=8", "model.mode=h+J"]
    assert made["gaps"] == [["t4-h+J", "t4-softmax"], ["t8-h+J", "t8-softmax"]]
    assert made["series"] == {
        "softmax": {"4": "t4-softmax", "8": "t8-softmax"},
        "h+J": {"4": "t4-h+J", "8": "t8-h+J"},
    }
    assert "table" not in made


def test_arms_and_baseline() -> None:
    arms = {"softmax": ["model.mode=softmax", "model.dropout=0"]}
    made = rows_of_table({"table": TABLE, "arms": arms, "baseline": "h+J"})
    assert made["variants"]["t4-softmax"] == ["task.window=4", "model.mode=softmax", "model.dropout=0"]
    assert made["gaps"] == [["t4-softmax", "t4-h+J"], ["t8-softmax", "t8-h+J"]]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"table": {}}, "table: expected a mapping"),
        ({"table": {"8": {"h": [1.0]}}}, "table: expected arms for every window, as 't8', got '8'"),
        ({"table": {"t8": {}}}, "table: expected arms for every window, as 't8', got 't8'"),
        ({"table": {"t8": {"h": 5.9}}}, "table: expected .* for 't8-h', got 5.9"),
        ({"table": TABLE, "baseline": "h"}, "baseline: expected an arm of every window, got 'h' at 't4'"),
        ({"table": TABLE, "arms": {"h": []}}, "arms: expected arms of the table, got 'h'"),
        ({"table": TABLE, "published": {}}, "published: cannot be combined with 'table'"),
        ({"baseline": "h"}, "baseline: expected the key 'table' beside it"),
    ],
)
def test_other_forms_are_refused(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        rows_of_table(document)


def test_a_refusal_is_one_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("title: x\nconfig: brackets-t8\ntable: {t8: {h: 5.9}}\n")
    with pytest.raises(ConfigError, match="table: expected"):
        load_experiment(str(path))
    path.write_text("title: x\nconfig: brackets-t8\nvary: model.mode\npublished: {h: 1}\ngaps: [[h, J]]\n")
    with pytest.raises(ConfigError, match="gaps: expected rows of published, got 'J'"):
        load_experiment(str(path))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("table2-shakespeare", {"t14-h+J": 5.493, "t4-softmax": 6.775, "t12-h": 6.030, "t8-J": 6.318}),
        ("table3-brackets", {"t16-h+J": 0.9597, "t12-softmax": 0.9336, "t8-J": 1.0}),
        ("table5-brackets", {"t16-h+J": 0.8965, "t12-J": 0.8465}),
        ("table6-shakespeare", {"t8-h+J+K": 5.916, "t12-K": 5.933}),
        ("table7-brackets", {"t12-h+J+K": 0.9984, "t8-J+K": 0.9996}),
    ],
)
def test_shipped_tables_have_the_published_values_and_protocol(name: str, rows: dict[str, float]) -> None:
    experiment = load_experiment(name)
    assert rows.items() <= experiment.published.items()
    assert experiment.seeds == (0, 1, 2, 3, 4)
    for row in experiment.published:
        config: Any = load_config(experiment.config, (*experiment.protocol, *experiment.overrides(row)))
        assert row == f"t{config.task.window}-{config.model.mode}"
        assert config.model.embedding_dropout == config.model.dropout == 0.1
        assert config.model.ffn_dim == {"table5-brackets": 0}.get(name, 128 if "shakespeare" in name else 64)


def test_tables_that_share_runs_describe_them_alike() -> None:
    experiments = [load_experiment(name) for name in shipped_experiments()]
    shared = [e for e in experiments if e.runs is not None]
    assert len(shared) == 4
    for one in shared:
        for other in (e for e in shared if e.runs == one.runs):
            assert (one.config, one.protocol) == (other.config, other.protocol)
            for row in one.published.keys() & other.published.keys():
                assert one.overrides(row) == other.overrides(row)
                assert one.published[row] == other.published[row]
