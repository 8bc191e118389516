"""``experiments.sentence_pairs``: poolings against their formulas, and trainings of a few steps with a tiny encoder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

import diabat
from diabat.samplers import UnsupportedError
from experiments import sentence_pairs
from experiments.sentence_pairs import (
    CONFIG,
    NUM_TRAIN,
    POOLINGS,
    PairClassifier,
    ProjectedMeanPooling,
    configured,
    discordant,
    encoder_of,
    gaps,
    main,
    optimizer_of,
    run,
    sick,
)

SMALL = ["encoder=tiny", "tiny.hidden_size=16", "tiny.num_hidden_layers=1", "max_length=16", "num_train=24",
         "hidden=8", "options.num_heads=2", "trainer.num_train_epochs=2", "trainer.per_device_train_batch_size=8",
         "trainer.bf16=false"]  # fmt: skip
WORDS = ("a man is playing", "a man is not playing", "a dog and a cat")


def config(*changes: str) -> dict[str, Any]:
    return configured(CONFIG, [*SMALL, *changes])


def model_of(*changes: str) -> PairClassifier:
    torch.manual_seed(0)
    return PairClassifier(encoder_of(config(*changes), WORDS)[0], config(*changes))


def small_sets(path: Path) -> dict[str, Any]:
    """The label is the word that the second sentence ends with."""
    from datasets import Dataset

    words = [("yes", "maybe", "no")[i % 3] for i in range(24)]
    rows = {"first": ["a man is"] * 24, "second": [f"a dog {w}" for w in words], "label": [0, 1, 2] * 8}
    return dict.fromkeys(("train", "validation", "test"), Dataset.from_dict(rows))


@pytest.mark.slow
def test_a_few_steps_are_trained_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sentence_pairs, "sick", small_sets)
    rates = ["trainer.learning_rate=1e-2", "head_learning_rate=1e-2", "trainer.num_train_epochs=12"]
    chosen = ["neurogame", "mean", "boltzmann"]
    command = [str(tmp_path), "--seeds", "1", "--json", *(f"--pooling={name}" for name in chosen)]
    main([*command, *SMALL, *rates])
    first, _, last = capsys.readouterr().out.splitlines()
    rows = json.loads(first)["rows"]
    assert [row["pooling"] for row in rows] == chosen
    assert all(row["right alone"] + row["mean alone"] <= 24 for row in json.loads(last)["rows"])
    assert all(row["mean"] > 60 for row in rows), rows  # guessing has 33
    monkeypatch.setattr(sentence_pairs, "run", lambda *_: pytest.fail("is kept"))
    main([*command, *SMALL, *rates])
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rows"] == rows
    with pytest.raises(SystemExit, match="expected results with"):
        main([*command, *SMALL])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_logits_do_not_depend_on_padding(pooling: str) -> None:
    model = model_of(f"pooling={pooling}").double().eval()
    tokens = torch.tensor([[2, 5, 6, 3, 7, 3], [2, 8, 3, 5, 3, 0]])
    mask, logits = (tokens != 0).long(), []
    for more in (0, 2):
        wider = (torch.nn.functional.pad(values, (0, more)) for values in (tokens, mask))
        torch.manual_seed(1)  # of the coalitions
        logits.append(model(*wider)["logits"])
    assert_close(*logits, rtol=1e-5, atol=1e-6)
    loss = model.train()(tokens, mask, labels=torch.tensor([0, 2]))["loss"]
    loss.backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())]
    # A bias of all keys shifts every score alike; without fields no gate decides.
    assert not [n for n in silent if "key.bias" not in n and "embeddings" not in n and ".gate." not in n], (
        silent
    )


def test_the_projected_mean_against_the_game() -> None:
    x, hidden = torch.randn(2, 4, 6), torch.tensor([[False, True, False, False], [False] * 4])
    mean = ProjectedMeanPooling(6, 0.1)
    game = diabat.NeuroGameAttention(
        6, 2, mode="uniform"
    )  # the same projections, with α = 1/2 instead of 1/n
    game.value.load_state_dict(mean.value.state_dict())
    game.output_projection.load_state_dict(mean.output.state_dict())
    assert_close(mean(x, hidden), game(x, hidden) * torch.tensor([[2 / 3], [2 / 4]]))


def test_poolings_are_compared_with_the_mean() -> None:
    """The tests of docs/results-training.md; no seed is left out, and one seed says nothing."""
    tests = {"neurogame": [83.497, 82.696, 82.516], "mean": [83.317, 83.717, 83.557], "softmax": [83.5]}
    rows = [{"pooling": name, "test accuracy / %": own} for name, own in tests.items()]
    (found,) = gaps(rows)
    assert (found["pooling"], found["verdict"]) == ("neurogame", "cannot tell")
    assert [found["points"], *found["95 % interval"]] == pytest.approx([-0.63, -1.76, 0.50], abs=5e-3)
    assert (round(found["power for a point"], 2), found["seeds for 80 %"]) == (0.50, 5)
    assert gaps(rows[:1]) == []


def test_mcnemar_counts_pairs_once_for_all_seeds() -> None:
    """By hand: 2 of 2 discordant pairs have p = 2/4, 3 of 3 have 2/8, and a pair with equal counts is left out."""
    own, mean = [[1, 1, 0, 1], [1, 0, 1, 1]], [[0, 0, 0, 1], [0, 0, 1, 0]]
    rows = discordant({"mean": mean, "neurogame": own})
    found = [[row["seed"], row["right alone"], row["mean alone"], row["p"]] for row in rows]
    assert found == [["0", 2, 0, 0.5], ["1", 2, 0, 0.5], ["all", 3, 0, 0.25]]
    assert discordant({"neurogame": own}) == []


@pytest.mark.slow
def test_the_pairs_that_are_right_stand_in_the_order_of_the_set(tmp_path: Path) -> None:
    """By length the sampler of transformers shuffles: then the set backwards would not have the answers backwards."""
    sets = small_sets(tmp_path)
    longer = (
        sets["test"]
        .select(range(20))
        .map(lambda row, i: {"second": row["second"] + " a" * (i // 6)}, with_indices=True)
    )
    still = ["trainer.learning_rate=0", "head_learning_rate=0", "trainer.num_train_epochs=1", "pooling=mean"]
    tests = (longer, longer.select(range(19, -1, -1)))
    right = [run(config(*still), 0, tmp_path, {**sets, "test": test})["right"] for test in tests]
    assert right[0] == right[1][::-1] != right[1]


def test_rates_are_those_of_encoder_head_and_couplings() -> None:
    groups = optimizer_of(model_of("pooling=boltzmann"), config("pooling=boltzmann")).param_groups
    assert [group["lr"] for group in groups] == [1e-4, 1e-3, 1e-2]
    assert [p.shape for p in groups[2]["params"]] == [(2, 16 * 15 // 2)]


def test_the_split_of_sick(tmp_path: Path) -> None:
    path = Path(os.environ.get("DIABAT_DATA", ".")) / "SICK.txt"
    if not path.exists():
        pytest.skip("SICK.txt is not in $DIABAT_DATA")
    sets = sick(path)
    assert {name: len(part) for name, part in sets.items()} == {
        "train": NUM_TRAIN,
        "validation": 495,
        "test": 4993,
    }
    assert [sum(part["label"]) for part in sets.values()] == [3792, 431, 4306]
    (tmp_path / "other").write_bytes(path.read_bytes() + b"1")
    with pytest.raises(SystemExit, match=r"DIABAT_DATA: expected SICK.txt with sha256"):
        sick(tmp_path / "other")


def test_keys_of_a_configuration_are_checked() -> None:
    assert config("trainer.learning_rate=1e-3")["trainer"]["learning_rate"] == 1e-3
    assert config("sampler.backend=exact")["sampler"] == {"backend": "exact"}
    with pytest.raises(SystemExit, match="poolin: expected one of encoder, tiny"):
        config("poolin=mean")
    with pytest.raises(ValueError, match=r"^encoder: expected an installed .* pip install no-such-package"):
        encoder_of(config("encoder=package:no_such_package/x"), WORDS)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["neurogame", "boltzmann"])
def test_pairs_that_the_sampler_refuses_are_refused_before_the_first_step(
    pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last of the training pairs is too long."""
    import transformers

    sets = small_sets(tmp_path)
    long = sets["train"].add_item({"first": "a man is " * 9, "second": "a dog no", "label": 2})
    changes = ["max_length=40", "num_train=25", "sampler.backend=dqa", f"pooling={pooling}"]
    monkeypatch.setattr(transformers, "Trainer", lambda *_, **__: pytest.fail("begins"))
    with pytest.raises(UnsupportedError, match=r"'dqa' accepts at most \d+ (tokens|spins), got "):
        run(config(*changes), 0, tmp_path, {**sets, "train": long})


def test_a_folder_without_the_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"DIABAT_DATA: expected a folder with SICK.txt of zenodo.*got '.*' without it"
    ):
        sick(tmp_path / "SICK.txt")
