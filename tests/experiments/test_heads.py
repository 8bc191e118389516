"""``experiments.heads_study``: labels of its questions, and its numbers against direct evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from diabat.attention.games import harsanyi_dividends
from diabat.heads import Calibration, HeadCoalitions, disable_gac, enable_gac
from experiments import heads_study, heads_tables
from experiments.heads_study import Place, Sizes, answers, random_groups, run
from experiments.heads_tasks import (
    CHOICES,
    COUNT,
    HASH,
    HEADS,
    LENGTHS,
    RETRIEVE,
    TASKS,
    VALUE,
    decoder,
    questions,
)

TINY = Sizes(steps=2, samples=2, validation=8, test=8, groups=3, evaluation=8)


def answer(task: str, tokens: list[int]) -> int:
    """Position of the right choice, read from the tokens."""
    if task == "retrieval":
        assert tokens[0] == RETRIEVE
        pairs = dict(zip(tokens[1:-1:2], tokens[2:-1:2], strict=True))
        assert len(pairs) == (len(tokens) - 2) // 2
        return pairs[tokens[-1]] - VALUE
    assert (tokens[0], tokens[-2]) == (COUNT, HASH)
    return tokens[1:-2].count(tokens[-1])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("reach", LENGTHS)
def test_questions_are_labelled_rightly(task: str, reach: str) -> None:
    asked = questions(task, reach, 200, seed=3)
    assert sum(len(part.tokens) for part in asked) >= 200
    for part, length in zip(asked, LENGTHS[reach][task], strict=True):
        assert part.tokens.shape[1] == (2 * length + 2 if task == "retrieval" else length + 3)
        assert [answer(task, tokens) for tokens in part.tokens.tolist()] == part.labels.tolist()
        for sample, label in zip(part.samples(), part.labels.tolist(), strict=True):
            assert sample["answer"] == sample["choices"][label]


def test_log_odds_and_accuracy_are_those_of_the_game() -> None:
    torch.manual_seed(1)
    model = decoder().eval()
    asked = questions("counting", "known", 18, seed=1)
    samples = [sample for part in asked for sample in part.samples()]
    full = torch.ones(1, HEADS, dtype=torch.bool)
    for setting in (None, Calibration({1: (2,), 4: ()}, alpha=0.05, beta=0.3)):
        right, odds = answers(model, asked, setting)
        if setting is not None:
            enable_gac(model, setting)
        v = HeadCoalitions(model, samples, layer=2).sample_values(full)[:, 0]
        disable_gac(model)
        torch.testing.assert_close(odds, v, atol=2e-5, rtol=0)
        # A probability above one half is a right answer; a right answer among seven has at least log(1/6).
        assert torch.all(right[odds > 0])
        assert not torch.any(right[odds < math.log(1 / 6)])
    assert model.config._attn_implementation != "gac"


def test_random_groups_are_different_of_equal_size_and_never_the_salient_one() -> None:
    alone = random_groups({3: (5,)}, 20, seed=0)
    assert sorted(group[3] for group in alone) == [(k,) for k in range(8) if k != 5]
    salient = {layer: (layer,) for layer in range(5)} | {5: (1, 6)}
    found = random_groups(salient, 20, seed=0)
    assert found == random_groups(salient, 20, seed=0)
    assert len({str(group) for group in found}) == 20
    assert {tuple(map(len, group.values())) for group in found} == {(1, 1, 1, 1, 1, 2)}
    assert salient not in found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A study of one seed and task after two steps, with one α and two β."""
    folder: Path = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patched:
        for module in (heads_study, heads_tables):
            patched.setattr(module, "TASKS", ("retrieval",))
        patched.setattr(heads_study, "ALPHAS", (0.05,))
        patched.setattr(heads_study, "BETAS", (0.3, 0.9))
        places = run(folder, TINY, seeds=1, workers=1)
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}
        assert run(folder, TINY, seeds=1, workers=1) == places
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")} == before
        tables = list(heads_tables.tables(places))
    assert len({title for title, _ in tables}) == 4
    return places[0]


def test_dividends_are_those_of_the_table_of_the_game(place: Place) -> None:
    found = place.read("dividends")[4]
    table = HeadCoalitions(place.model(), place.samples(TINY.samples), layer=4).table()
    w = harsanyi_dividends(table - table[0])
    top = int(w.argmax())
    assert found["players"] == [k for k in range(8) if top >> k & 1]
    assert found["w"] == pytest.approx(float(w[top]), abs=1e-4)
    assert sum(found["sums"]) == pytest.approx(found["v(N) - v(∅)"], abs=1e-9)


@pytest.mark.parametrize("target", ["3", "all"])
def test_a_row_of_the_grid_is_a_direct_evaluation(place: Place, target: str) -> None:
    wanted = (target, "longer", 0.3, "salient")
    (row,) = (r for r in place.read("grid") if (r["target"], r["reach"], r["beta"], r["kind"]) == wanted)
    model, values, right = place.model(), [], []
    enable_gac(model, Calibration(place.salient(target), 0.05, 0.3))
    for part in place.questions("longer", TINY.validation, heads_study.VALIDATION):
        with torch.no_grad():
            logits = model(part.tokens).logits[:, -1, list(CHOICES[place.task])].double()
        p = logits.softmax(-1).gather(1, part.labels[:, None])[:, 0]
        values += (p / (1 - p)).log().tolist()
        right += (logits.argmax(-1) == part.labels).tolist()
    assert row["accuracy"] == pytest.approx(100 * sum(right) / len(right))
    assert row["v"] == pytest.approx(sum(values) / len(values), abs=1e-5)


def test_a_folder_of_other_sizes_is_refused(place: Place) -> None:
    with pytest.raises(SystemExit, match="folder: expected results with"):
        run(place.folder, Sizes(steps=3), seeds=1, workers=1)
