"""The study of a trained decoder: labels of its questions, and its numbers against direct evaluation."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.heads_study import asked as asking
from benchmarks.heads_study import calibrations, core, decoder, games, stages
from benchmarks.heads_study.core import Piece, Sizes
from benchmarks.heads_study.stages import compute
from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads import Calibration, HeadCoalitions, harsanyi_dividends
from diabat.huggingface import disable_gac, enable_gac

TINY = Sizes(steps=2, samples=2, pair_samples=1, validation=8, test=8, groups=3, evaluation=8)


def answer(task: str, tokens: list[int]) -> int:
    """Position of the right choice, read from the tokens."""
    if task == "retrieval":
        assert tokens[0] == decoder.RETRIEVE
        pairs = dict(zip(tokens[1:-1:2], tokens[2:-1:2], strict=True))
        assert len(pairs) == (len(tokens) - 2) // 2
        return pairs[tokens[-1]] - decoder.VALUE
    assert (tokens[0], tokens[-2]) == (decoder.COUNT, decoder.HASH)
    return tokens[1:-2].count(tokens[-1])


@pytest.mark.parametrize("task", decoder.TASKS)
@pytest.mark.parametrize("reach", decoder.LENGTHS)
def test_questions_are_labelled_rightly(task: str, reach: str) -> None:
    asked = decoder.questions(task, reach, 200, seed=3)
    assert sum(len(part.tokens) for part in asked) >= 200
    for part, length in zip(asked, decoder.LENGTHS[reach][task], strict=True):
        assert part.tokens.shape[1] == (2 * length + 2 if task == "retrieval" else length + 3)
        for tokens, label in zip(part.tokens.tolist(), part.labels.tolist(), strict=True):
            assert answer(task, tokens) == label
        for sample, label in zip(part.samples(), part.labels.tolist(), strict=True):
            assert sample["label"] == sample["choices"][label]


@pytest.mark.parametrize("task", decoder.TASKS)
def test_every_answer_in_a_training_sequence_is_right(task: str) -> None:
    generator = torch.Generator().manual_seed(0)
    make = decoder.retrieval if task == "retrieval" else decoder.counting
    tokens, answers = make(50, 6, 3, generator)
    assert answers.shape == tokens.shape
    count = 0
    for row, at in zip(tokens.tolist(), answers.tolist(), strict=True):
        pairs = dict(zip(row[1:13:2], row[2:13:2], strict=True))
        for position in (k for k, there in enumerate(at) if there):
            key = row[position - 1]
            right = pairs[key] if task == "retrieval" else decoder.DIGIT + row[1:7].count(key)
            assert row[position] == right
            count += 1
    assert count == 150


def test_heads_of_the_first_layer_begin_at_the_token_before() -> None:
    torch.manual_seed(0)
    model = decoder.decoder().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        tokens = torch.randint(decoder.VOCABULARY, (4, 20))
        maps = model(tokens, output_attentions=True).attentions[0]
    before = maps.diagonal(-1, dim1=-2, dim2=-1)[..., 3:].mean((0, 2))
    assert before[: decoder.HEADS // 2].min() > 0.4
    assert before[decoder.HEADS // 2 :].max() < 0.3


def test_log_odds_and_accuracy_are_those_of_the_game() -> None:
    torch.manual_seed(1)
    model = decoder.decoder().eval()
    asked = decoder.questions("counting", "known", 18, seed=1)
    samples = [sample for part in asked for sample in part.samples()]
    calibration = Calibration({1: (2,), 4: ()}, alpha=0.05, beta=0.3)
    full = torch.ones(1, decoder.HEADS, dtype=torch.bool)
    before = copy.deepcopy(model.state_dict())
    for setting in (None, calibration):
        right, odds = asking.Asked(model, asked, first=1).answers(setting)
        if setting is not None:
            enable_gac(model, setting)
        v = HeadCoalitions(model, samples, layer=2).sample_values(full)[:, 0]
        disable_gac(model)
        torch.testing.assert_close(odds, v, atol=2e-5, rtol=0)
        # A probability above one half is a right answer; a right answer among seven has at least log(1/6).
        assert torch.all(right[odds > 0])
        assert not torch.any(right[odds < math.log(1 / 6)])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.config._attn_implementation != "gac"


def test_calibration_of_every_head_is_applied() -> None:
    torch.manual_seed(1)
    model = decoder.decoder().eval()
    asked = decoder.questions("retrieval", "known", 10, seed=1)
    answers = asking.Asked(model, asked).answers
    off = answers()[1]
    torch.testing.assert_close(answers(Calibration({0: tuple(range(8))}))[1], off, atol=1e-4, rtol=0)
    assert (answers(Calibration({0: ()}))[1] - off).abs().max() > 0.01
    assert torch.equal(answers()[1], off)


def test_paired_differences() -> None:
    old = torch.tensor([True, False, False, True]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    new = torch.tensor([True, True, True, False]), torch.tensor([2.0, 2.0, 3.0, 5.0])
    row = asking.compared(old, new)
    assert (row["accuracy"], row["accuracy change"]) == (75.0, 25.0)
    assert row["v"] == 3.0
    assert row["v change"] == 0.5
    # Differences 1, 0, 0, 1: variance 1/3, and four of them.
    assert row["v error"] == pytest.approx(math.sqrt(1 / 3) / 2)


def test_random_groups_are_different_of_equal_size_and_never_the_salient_one() -> None:
    alone = asking.random_groups({3: (5,)}, 20, seed=0)
    assert alone == [{3: (k,)} for k in range(8) if k != 5]
    salient = {layer: (layer,) for layer in range(5)} | {5: (1, 6)}
    found = asking.random_groups(salient, 20, seed=0)
    assert found == asking.random_groups(salient, 20, seed=0)
    assert len({str(group) for group in found}) == 20
    assert all(
        {k: len(v) for k, v in group.items()} == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 2} for group in found
    )
    assert salient not in found


def test_explained_variance_of_games_that_are_known() -> None:
    coalitions = all_coalitions(8)
    s = 2 * coalitions.double() - 1
    linear = s @ torch.arange(1.0, 9.0, dtype=torch.float64)
    pairs = linear + 3 * s[:, 0] * s[:, 5]
    found = games.explained(coalitions, torch.stack((linear, pairs)), seed=0)
    assert found["R² linear, samples"][0] == pytest.approx(1, abs=1e-6)
    assert found["R² linear, samples"][1] < 0.99
    assert found["R² pairs, samples"] == pytest.approx([1, 1], abs=1e-6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the decoder, after two steps, and games and grid of one task and seed."""
    folder: Path = tmp_path_factory.mktemp("study")
    wanted = [Piece("decoder", 0)]
    wanted += [piece for piece in stages.pieces("dividends", 1) if piece.task == "retrieval"]
    for piece in wanted:
        compute(piece, folder, TINY, lambda steps: None)
    return folder


def test_dividends_of_a_piece_are_those_of_its_table(trained: Path) -> None:
    piece = Piece("dividends", 0, "retrieval", "4")
    found = piece.read(trained)
    model = core.load_model(trained, 0)
    table = HeadCoalitions(model, core.samples_of(piece, TINY.samples), layer=4).table()
    w = harsanyi_dividends(table - table[0])
    top = int(w.argmax())
    assert found["players"] == [k for k in range(8) if top >> k & 1]
    assert found["w"] == pytest.approx(float(w[top]), abs=1e-4)
    assert sum(found["sums"]) == pytest.approx(found["v full"] - found["v empty"], abs=1e-9)


@pytest.mark.parametrize("target", ["3", "all"])
def test_a_row_of_the_grid_is_a_direct_evaluation(
    trained: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (calibrations, stages):
        monkeypatch.setattr(module, "ALPHAS", (0.05,))
        monkeypatch.setattr(module, "BETAS", (0.3, 0.9))
    piece, steps = Piece("grid", 0, "retrieval", target), list[int]()
    compute(piece, trained, TINY, steps.append)
    rows: list[dict[str, Any]] = piece.read(trained)["rows"]
    assert len(rows) == sum(steps) == stages.STAGES["grid"][1](TINY)
    (row,) = (row for row in rows if (row["reach"], row["beta"], row["kind"]) == ("longer", 0.3, "salient"))
    model = core.load_model(trained, 0)
    asked = decoder.questions("retrieval", "longer", TINY.validation, core.seed_of(core.VALIDATION, 0))
    enable_gac(model, Calibration(core.salient_groups(trained, piece), 0.05, 0.3))
    values, right = [], []
    for part in asked:
        with torch.no_grad():
            logits = model(part.tokens).logits[:, -1, list(decoder.CHOICES["retrieval"])].double()
        p = logits.softmax(-1).gather(1, part.labels[:, None])[:, 0]
        values += (p / (1 - p)).log().tolist()
        right += (logits.argmax(-1) == part.labels).tolist()
    assert row["accuracy"] == pytest.approx(100 * sum(right) / len(right))
    assert row["v"] == pytest.approx(sum(values) / len(values), abs=1e-5)


def test_questions_of_different_purposes_differ() -> None:
    seeds = [core.seed_of(purpose, seed) for purpose in range(1, 5) for seed in range(3)]
    drawn = [decoder.questions("retrieval", "known", 30, seed)[-1].tokens for seed in seeds]
    assert all(not torch.equal(a, b) for k, a in enumerate(drawn) for b in drawn[:k])
