"""``experiments.heads.sets`` and ``experiments.gac_study``: rightness of the questions, and a tiny study."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoders import WORDS, decoder

pytest.importorskip("peft", reason="the extra 'hf' is not installed")

from diabat.checks import ArgumentError
from diabat.heads import Calibration, HeadCoalitions, disable_gac, enable_gac
from experiments import gac_study
from experiments.common import kept
from experiments.gac_study import Study, compared, random_groups
from experiments.heads import sets
from experiments.heads.sets import Questions, answers

POOLS = (sets.NAMES, sets.WORDS, sets.EVENTS, sets.GOOD, sets.BAD, sets.THINGS, sets.CAPITALS)
POOL = {*re.findall(r"\w+", " ".join(POOLS))}


def tokenizer() -> Any:
    """One token per word and per digit."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    between = "The was Review Sentiment positive negative lasted from the year to"
    texts = [*POOLS, *sets.PLACES, *sets.VISITS, between]
    words = dict.fromkeys(re.findall(r"\w+|[^\w\s]", " ".join(texts) + " 0 1 2 3 4 5 6 7 8 9"))
    plain = Tokenizer(models.WordLevel({word: k for k, word in enumerate(["<unk>", *words])}, "<unk>"))
    digits = pre_tokenizers.Digits(individual_digits=True)
    plain.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), digits])
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")


def right(name: str, prompt: str) -> str:
    """The answer, from the text of the question."""
    words = prompt.split()
    if name == "indirect-objects":
        first, giver = words[1], prompt.split(", ")[1].split()[0]
        pair = {first, prompt.split(" and ")[1].split()[0]}
        return (pair - {giver}).pop()
    if name == "induction":
        return words[words.index(words[-1]) + 1]
    if name == "capitals":
        pairs = dict(pair.split(":") for pair in sets.CAPITALS.split())
        return next(city for country, city in pairs.items() if country in prompt)
    return "positive" if any(word in prompt for word in sets.GOOD.split()) else "negative"


@pytest.mark.parametrize("name", sets.SETS)
def test_answers_are_right_and_parts_and_prompts_differ(name: str) -> None:
    words, parts = tokenizer(), {}
    for part in ("validation", "test"):
        asked = sets.questions(name, part, 20, 0, words)
        assert asked == sets.questions(name, part, 20, 0, words)
        assert len({question["prompt"] for question in asked}) == 20
        parts[part] = {*re.findall(r"\w+", str(asked))} & POOL
        for question in asked:
            choices = [choice.strip() for choice in question["choices"]]
            if name == "greater-than":
                year = int(re.findall(r"\d+", question["prompt"])[0])
                assert int(choices[1]) < year // 10 % 10 < int(choices[0])
            else:
                assert choices[0] == right(name, question["prompt"])
            assert len(words(question["corrupted"]).input_ids) == len(words(question["prompt"]).input_ids)
            assert question["corrupted"] != question["prompt"]
    assert parts["test"]
    assert not parts["test"] & parts["validation"]


def test_questions_that_say_nothing_are_refused() -> None:
    for choices in ([" red"], [" red", " red dog"]):
        with pytest.raises(ArgumentError, match=r"question 0\.choices: expected"):
            sets.batches([{"prompt": "dog", "choices": choices, "answer": 0}], tokenizer(), 1000)
    with pytest.raises(
        ValueError, match="count: expected at most 36 different questions of capitals, got 37"
    ):
        sets.questions("capitals", "validation", 37, 0, tokenizer())


def test_log_odds_and_accuracy_are_those_of_the_game() -> None:
    model, g = decoder(), torch.Generator().manual_seed(1)
    tokens = torch.randint(4, len(WORDS), (18, 9), generator=g)
    choices = torch.arange(20, 27).expand(18, -1)
    asked = Questions(tokens, choices, torch.randint(7, (18,), generator=g))
    rows = zip(tokens, choices.tolist(), asked.labels.tolist(), strict=True)
    samples = [{"input_ids": row, "choices": own, "answer": own[label]} for row, own, label in rows]
    full = torch.ones(1, 4, dtype=torch.bool)
    for setting in (None, Calibration({1: (2,), 2: ()}, alpha=0.05, beta=0.3)):
        right, odds = answers(model, [asked], setting)
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
    alone = random_groups({3: (5,)}, 20, seed=0, heads=8)
    assert sorted(group[3] for group in alone) == [(k,) for k in range(8) if k != 5]
    salient = {layer: (layer,) for layer in range(5)} | {5: (1, 6)}
    found = random_groups(salient, 20, seed=0, heads=8)
    assert found == random_groups(salient, 20, seed=0, heads=8)
    assert len({str(group) for group in found}) == 20
    assert {tuple(map(len, group.values())) for group in found} == {(1, 1, 1, 1, 1, 2)}
    assert salient not in found


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study of a random decoder, run twice."""
    folder: Path = tmp_path_factory.mktemp("gac")
    words = tokenizer()
    decoder(vocab_size=len(words), num_hidden_layers=2).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    sets.main([str(folder / "model"), str(folder / "sets"), "--validation", "4", "--test", "6"])
    made = Study(folder / "study", str(folder / "model"), folder / "sets", (0, 1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gac_study, "SETS", ("sentiment", "greater-than"))
        patched.setattr(gac_study, "ALPHAS", (0.1,))
        gac_study.run(made)
        before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*.json")}
        gac_study.run(made)
        assert {path: path.stat().st_mtime_ns for path in made.folder.rglob("*.json")} == before
        tables = list(gac_study.tables(made))
    assert len({title for title, _ in tables}) == 4
    return made


def test_rows_are_direct_evaluations(study: Study) -> None:
    salient = study.heads(study.group("sentiment", "all"))
    players = kept(study.path("games", "sentiment"))[0]["players"]
    assert salient[0] == tuple(head for player in players for head in (2 * player, 2 * player + 1))
    paper = next(row for row in kept(study.path("test", "sentiment")) if row["arm"] == "salient, 0.1")
    _, odds = answers(study.loaded[0], study.loaded[1]["sentiment", "test"], Calibration(salient, 0.1, 0.1))
    assert paper["v"] == pytest.approx(float(odds.mean()), abs=1e-5)


def test_act_spares_the_heads_that_lose_and_scales_with_the_length(study: Study) -> None:
    spared, (asked,) = kept(study.path("act", "greater-than")), study.loaded[1]["greater-than", "test"]
    setting = Calibration({0: (1, 2), 1: ()}, 5 / asked.tokens.shape[1], 0.4, "prompt")
    _, wanted = answers(study.loaded[0], [asked], setting)
    torch.testing.assert_close(study.answers("greater-than", "test", {0: (1, 2), 1: ()})[1], wanted)
    before = study.answers("greater-than", "validation")
    for layer, head in ((0, 3), (1, 6)):
        alone = {layer: tuple(k for k in range(8) if k != head)}
        row = compared(before, study.answers("greater-than", "validation", alone))
        loses = (row["accuracy change"], row["v change"]) < (0, 0)
        assert (head in spared[str(layer)]) == loses
