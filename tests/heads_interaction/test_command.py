from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import diabat
from diabat.attention.heads import HeadInteractions
from diabat.attention.heads.interaction.coalition_tests import within_against_between
from diabat.attention.heads.interaction.communities import communities
from diabat.cli.app import app
from diabat.huggingface.loading import load_adapter, load_decoder
from diabat.runs.heads.texts import batches_of, read_texts

from .decoders import adapted


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(
        app, ["heads", "interaction", *map(str, arguments), "--no-progress", "--offline"]
    )


def test_every_layer_is_a_row_of_the_measurement(saved: Path, texts: Path) -> None:
    done = run(saved, "--data", texts, "--batch-size", 4, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    model, tokenizer = load_decoder(str(saved), local_files_only=True)
    batches = batches_of(read_texts(texts, tokenizer, 32), 4)
    expected = HeadInteractions(model).measure(batches)
    even, odd = (HeadInteractions(model).measure(batches[k::2]) for k in (0, 1))
    assert [row["layer"] for row in report["rows"]] == [0, 1, 2]
    for row in report["rows"]:
        found = expected[row["layer"]]
        torch.testing.assert_close(torch.tensor(row["G"], dtype=torch.float64), found.G)
        assert row["gamma"] == pytest.approx(found.gamma)
        assert row["invariant_gamma"] == pytest.approx(found.invariant_gamma)
        assert row["tokens"] == found.tokens
        assert found.information is not None
        assert row["total_correlation"] == pytest.approx(found.information.total_correlation)
        assert sum(row["coalition_sizes"]) == len(row["labels"]) == 6
        labels = communities(even[row["layer"]].G, diabat.sampler("tempering"))
        assert row["labels"] == labels.tolist()
        tested = within_against_between(odd[row["layer"]].G, labels)
        assert row["p_value"] == pytest.approx(tested.p_value)
        assert row["advantage"] == pytest.approx(tested.advantage)
    assert report["coalitions"] == "communities by tempering"
    assert set(report["definitions"]) == set(report["rows"][0])


def test_table_and_figure(saved: Path, texts: Path, tmp_path: Path) -> None:
    figure = tmp_path / "maps" / "g.png"
    done = run(saved, "--data", texts, "--batch-size", 2, "--batches", 2, "--layers", "0,2", "--coalitions", 2,
               "--figure", figure)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "Head interaction of" in done.stdout
    assert "Γ'" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
    again = run(
        saved, "--data", texts, "--batch-size", 2, "--batches", 2, "--layers", "0,2", "--coalitions", 2
    )
    assert again.stdout in done.stdout  # the same seed, the same table


def test_an_adapter_is_measured(saved: Path, texts: Path, tmp_path: Path) -> None:
    model, _ = load_decoder(str(saved), local_files_only=True)
    adapted(model).save_pretrained(tmp_path / "adapter")
    reports = [
        json.loads(run(saved, "--data", texts, "--json", "--batch-size", 6, *further).stdout)
        for further in ([], ["--adapter", tmp_path / "adapter"])
    ]
    assert reports[0]["rows"][1]["omega"] != reports[1]["rows"][1]["omega"]
    plain, _ = load_decoder(str(saved), local_files_only=True)
    loaded = load_adapter(plain, tmp_path / "adapter")
    omega = HeadInteractions(loaded, [1]).outputs.slices(1)
    assert omega.shape == (6, 24, 4)
    missing = run(saved, "--data", texts, "--adapter", tmp_path)
    assert missing.exit_code == 2
    assert "--adapter: expected a folder with adapter_config.json" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--layers", "7"], "--layers: expected a layer with attention, 0 .. 2, got 7"),
        (["--layers", "a"], "--layers: expected layers such as 0,4-7, got 'a'"),
        (["--aggregation", "mean"], "--aggregation: expected one of concatenated"),
        (["--batch-size", "50"], "--batch-size: expected less than the 12 texts"),
        (["--sampler", "exakt"], "sampler"),
        (["--sampler", "mean_field"], "cannot draw samples"),
        (["--coalitions", "9"], "--coalitions: expected at most 6, got 9"),
        (["--figure", "g.txt"], "expected a file ending in"),
        (["--data", "none.jsonl"], "none.jsonl"),
    ],
)
def test_bad_options(saved: Path, texts: Path, arguments: list[str], match: str) -> None:
    done = run(saved, "--data", texts, "--batch-size", 4, *arguments)
    assert done.exit_code in (1, 2)
    assert match in done.stderr
    assert "Traceback" not in done.stderr


def test_one_head_is_refused_in_one_sentence(tmp_path: Path, texts: Path) -> None:
    from .decoders import decoder

    decoder("llama", dtype=torch.float32, num_attention_heads=1, num_key_value_heads=1).save_pretrained(
        tmp_path / "one"
    )
    path = tmp_path / "ids.jsonl"
    path.write_text("\n".join(['{"input_ids": [1, 2, 3]}'] * 4))
    done = run(tmp_path / "one", "--data", path, "--batch-size", 2)
    assert "MODEL: expected two heads or more that interact, got one in layer 0." in done.stderr
