"""``experiments.facts`` and ``experiments.game_lora_study``: the truth is that of the documents; a tiny study."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from experiments import game_lora_study as study
from experiments.common import keep, kept
from experiments.facts import BEGIN, KINDS, NOTE, PAD, World, deviations, documents, probes, renamed

DOCS = Path(__file__).parents[2] / "docs"
WORLD = World(entities=6, relations=3, values=4, facts=3)


def test_documents_follow_the_law_of_the_probes() -> None:
    """Counts behind each pair in 5,000 documents against y*, within 5 standard errors (18 comparisons, alpha 1e-5)."""
    world = World(entities=4, relations=2, values=3, unseen=0.25, probabilistic=0.25, noted=0.0, facts=4)
    counts = np.zeros((4, 2, 3))
    for row in documents(world, 5_000, seed=3):
        tokens = row["input_ids"].tolist()
        for at in range(1, len(tokens) - 3, 4):
            if tokens[at] != PAD:
                e, r = (a - b for a, b in zip(tokens[at : at + 2], world.question(0, 0), strict=True))
                counts[e, r, tokens[at + 2] - world.value(r, 0)] += 1
    laws, unseen = world.drawn()[1], {tuple(p) for p in world.pairs("unseen")}
    for e, r in np.ndindex(4, 2):
        total = counts[e, r].sum()
        assert (total == 0) == ((e, r) in unseen)
        if total:
            error = 5 * (laws[e, r] * (1 - laws[e, r]) / total) ** 0.5
            assert (np.abs(counts[e, r] / total - laws[e, r]) <= error).all()


def test_notes_override_for_the_rest_of_the_document() -> None:
    found = 0
    for row in documents(WORLD, 300, seed=1):
        tokens = row["input_ids"].tolist()
        if tokens[1] == NOTE:
            found += 1
            stated = [tokens[i : i + 3] for i in range(6, WORLD.length - 2, 4)]
            assert {tuple(s) for s in stated if s[:2] == tokens[2:4]} == {tuple(tokens[2:5])}
    assert 60 <= found <= 120


def test_probes_and_their_truth() -> None:
    for kind, support in zip(KINDS, (1, 4, 1, 2), strict=True):
        prompts, truth = probes(WORLD, kind)
        assert torch.allclose(truth.sum(1), torch.ones(len(truth)).double())
        assert prompts[:, 0].eq(BEGIN).all()
        assert (truth > 0).sum(1).eq(support).all()
    seen, (prompts, other) = probes(WORLD, "seen")[1], probes(WORLD, "contradicted")
    assert not (seen * other).any()
    assert other.argmax(1).equal(prompts[:, 4])


def test_total_correlation_by_log_determinants_less_its_bias() -> None:
    g = torch.Generator().manual_seed(0)
    A = torch.randn(12, 24, generator=g, dtype=torch.float64)
    covariance, tokens = A @ A.T, 40
    blocks = sum(torch.logdet(covariance[k : k + 3, k : k + 3]) for k in range(0, 12, 3))
    terms = torch.digamma((39 - torch.arange(12).double()) / 2) - math.log(39 / 2)
    bias = 0.5 * float(4 * terms[:3].sum() - terms.sum())
    plug_in = 0.5 * float(blocks - torch.logdet(covariance))
    found = study.total_correlation(covariance, 4, tokens)
    assert found == pytest.approx(plug_in - bias, abs=1e-8)
    M = torch.block_diag(
        *torch.randn(4, 3, 3, generator=g, dtype=torch.float64)
    )  # another basis inside the heads
    assert study.total_correlation(M @ covariance @ M.T, 4, tokens) == pytest.approx(found, abs=1e-7)


def test_total_correlation_of_heads_that_know_each_other_is_infinite() -> None:
    """Fewer different tokens than features: rounding of the sums makes eigenvalues of the covariance negative."""
    g = torch.Generator().manual_seed(0)
    x = 300 + torch.randn(24, 64, generator=g, dtype=torch.float64).repeat(5, 1)
    mean = x.mean(0)
    covariance = (x.T @ x - len(x) * mean[:, None] * mean) / (len(x) - 1)
    assert torch.linalg.eigvalsh(covariance)[0] < -1e-11
    assert study.total_correlation(covariance, 4, len(x)) == math.inf


def test_a_direction_of_no_variance_knows_nothing() -> None:
    """Two features of head 0 differ by a millionth of what head 1 writes: without that the heads are independent."""
    mix = torch.tensor([[1.0, 0.0], [1.0, 1e-6], [0.0, 1.0]], dtype=torch.float64)
    covariance = torch.block_diag(mix @ mix.T, torch.eye(1, dtype=torch.float64))
    assert study.total_correlation(covariance, 2, 10**12) == pytest.approx(0, abs=1e-9)


def test_diagonal_correlation_by_hand() -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 2] = x[:, 0]  # feature 0 of both heads is the same
    expected = (1 + torch.corrcoef(x[:, [1, 3]].T)[0, 1]) / 2
    found = study.diagonal_correlation(torch.cov(x.T), 2)
    assert float(found[0, 1]) == pytest.approx(float(expected))


def test_differences_from_plain_lora_by_hand() -> None:
    """t of two degrees of freedom: 4.3027 * .1 / sqrt(3) = .248 about .2, and .075 of a spread of .03."""
    plain = [{"E": 0.5}, {"E": 0.25}, {"E": 1.0}]
    for changes, told in (
        ((0.1, 0.2, 0.3), "+0.200 ± 0.248"),
        ((0.17, 0.2, 0.23), "+0.200 ± 0.075 *"),
        ((0, 0, 0), "+0.000 ± 0.000"),
        ((0.5, 0.5, 0.5), "+0.500 ± 0.000 *"),
    ):
        runs = [{"E": row["E"] + change} for row, change in zip(plain, changes, strict=True)]
        assert study._difference(runs, plain, "E") == told


def test_errors_against_gamma_by_hand() -> None:
    """Means Γ 1 2 3 4 and E 2 1 4 3: r = 3/5; 4 of 6 pairs rise; Fisher's z .693 ± 1.960 with 4 arms."""
    seeds = ((-0.5, 0.25), (0.5, -0.25))
    runs = {
        str(gamma): [{"Γ": gamma + a, "E new": error + b} for a, b in seeds]
        for gamma, error in ((1, 2), (2, 1), (3, 4), (4, 3))
    }
    (row,) = study.against_gamma(runs, ["E new"])
    assert (row["arms"], row["rising pairs"]) == (4, "4 of 6")
    assert [row["r"], row["τ"], row["p"]] == pytest.approx([0.6, 1 / 3, 0.4])
    ends = [math.tanh(math.atanh(0.6) + side * 1.959964) for side in (-1, 1)]
    assert row["95 % interval"] == pytest.approx(ends)
    assert row["p of τ"] == pytest.approx(18 / 24)  # of the 24 orders, 6 have 3 rising pairs
    runs["4"] = runs["3"]  # both are equal, and no pair
    assert study.against_gamma(runs, ["E new"])[0]["rising pairs"] == "4 of 5"
    runs.pop("4")
    assert study.against_gamma(runs, ["E new"]) == []


def test_the_page_has_what_follows_from_its_table() -> None:
    """docs/results-heads.md: r, its interval and the rising pairs of every error, from the means that it prints."""
    section = (DOCS / "results-heads.md").read_text(encoding="utf-8").split("\n## GAME-LoRA\n")[1]
    table = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"
    ]
    at = [row[0] for row in table].index("error")
    (_, *names), _, _, *arms = table[:at]
    columns = dict(zip(names, zip(*(row[1:] for row in arms), strict=True), strict=True))
    chosen = {"Γ": columns[r"$\Gamma$"], **{name: columns[name] for name in names if name.startswith("E ")}}
    means = {name: [float(cell.split()[0]) for cell in cells] for name, cells in chosen.items()}
    runs = {arm[0]: [{name: values[k] for name, values in means.items()}] for k, arm in enumerate(arms)}
    for row, told in zip(study.against_gamma(runs, [*means][1:]), table[at + 2 :], strict=True):
        low, high = row["95 % interval"]
        assert told == [row["error"], f"{row['r']:.2f}", f"{low:.2f} to {high:.2f}", f"{row['p']:.2f}",
                        row["rising pairs"], f"{row['p of τ']:.2f}"]  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of libraries, as in the script
@pytest.mark.slow
def test_a_tiny_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, arms = default_collate(documents(study.WORLD, 16, 0)), ("plain", "ldb, nash")
    monkeypatch.setattr(study.Study, "held_out", lambda _: text)
    place = study.Study(tmp_path, steps=2)
    study.train_base(place, 2)
    keep(tmp_path / "before.json", study.scores(place, study.adapted(place, 0)))
    for arm in arms:
        for seed in (0, 1):
            study.fine_tune(place, arm, seed)
    tables = list(study.tables(place, 2, arms))
    assert [row["arm"] for title, row in tables if title == "Truth"] == ["plain", "ldb, nash"]
    (difference,) = (row for title, row in tables if title.startswith("Heads and text less plain LoRA"))
    runs = [[kept(place.path(arm, seed)) for seed in (0, 1)] for arm in arms]
    mean = sum(b["Γ"] - a["Γ"] for a, b in zip(*runs, strict=True)) / 2
    assert difference["Γ"].startswith(f"{mean:+.3f}")
    before = kept(tmp_path / "before.json")
    assert 0.5 < before["E old"] <= 1
    assert [step for step, _ in runs[0][0]["curve"]] == [1, 2]
    drawn = study.draw(place, 2, arms, tmp_path / "figure.png")
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_a_model_with_other_tokens_has_the_same_loss_and_deviations() -> None:
    torch.manual_seed(0)
    plain, other = study.decoder().eval(), study.decoder().eval()
    count = study.WORLD.vocabulary
    names = torch.randperm(count)
    other.load_state_dict(plain.state_dict())
    with torch.no_grad():
        for table in (other.get_input_embeddings().weight, other.get_output_embeddings().weight):
            table[names] = table.clone()
    rows = documents(study.WORLD, 4, seed=0)
    losses = [
        model(**default_collate(found)).loss
        for model, found in ((plain, rows), (other, renamed(rows, names)))
    ]
    torch.testing.assert_close(*losses)
    found = deviations(other, study.WORLD, names)
    for kind, wanted in deviations(plain, study.WORLD).items():
        torch.testing.assert_close(found[kind], wanted, atol=1e-6, rtol=0)


def test_what_a_model_gives_to_words_outside_the_world_is_wrong() -> None:
    """All tokens alike: with N tokens a known value has 1/N, and the values of an unseen pair have 4/N."""
    world, count = study.SMALL, 1000

    class Uniform(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, logits_to_keep: int) -> SimpleNamespace:
            return SimpleNamespace(logits=torch.zeros(len(input_ids), logits_to_keep, count))

    found = deviations(Uniform(), world, torch.arange(world.vocabulary))
    torch.testing.assert_close(found["seen"], torch.full_like(found["seen"], 1 - 1 / count))
    torch.testing.assert_close(found["unseen"], torch.full_like(found["unseen"], 1 - world.values / count))
