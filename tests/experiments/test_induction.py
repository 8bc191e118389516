"""``experiments.induction``: rightness of its questions and measures, and a study of a random decoder."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from test_gac_study import tokenizer
from tiny_decoders import decoder

pytest.importorskip("peft", reason="the extra 'hf' is not installed")

from experiments import induction
from experiments.common import attend_back, kept


def test_the_answer_stands_behind_the_former_occurrence() -> None:
    asked = induction.questions(20, "0")
    assert asked == induction.questions(20, "0") != induction.questions(20, "1")
    for question in asked:
        words, other = question["prompt"].split()[1:], question["corrupted"].split()[1:]
        assert f" {words[words.index(words[-1]) + 1]}" == question["choices"][question["answer"]]
        assert len(words) == len(other)
        assert words[8:] == other[8:]
        assert not {*words} & {*other[:8]}


def test_losses_of_halves_are_those_of_the_model() -> None:
    words = tokenizer()
    model, (sample,) = decoder(vocab_size=len(words)), induction.sequences("tokens", 1, words)
    ids, half = torch.tensor([sample["input_ids"]]), sample["half"]
    assert ids[0, -half:].tolist() == ids[0, -2 * half : -half].tolist()
    logits = model(ids).logits.detach()
    for first, begin in ((True, -2 * half), (False, -half)):
        labels = torch.full_like(ids, -100)
        end = begin + half or None
        labels[:, begin + 1 : end] = ids[:, begin + 1 : end]
        loss = -induction.likelihood(logits, sample, first=first)[0]
        torch.testing.assert_close(loss, model(ids, labels=labels).loss)


def test_heads_that_attend_back_are_found_by_their_attention() -> None:
    words = tokenizer()
    model = decoder(vocab_size=len(words), attention_bias=True, hidden_size=64, num_key_value_heads=8)
    samples, half = induction.sequences("words", 2, words), induction.HALVES["words"]
    attend_back(model, [3, 1, half - 1], 60.0)
    scores, maps = induction.attention(model, samples)
    assert induction.ranked(scores["previous"])[0] == (0, 1)
    assert induction.ranked(scores["prefix"])[0] == (0, 2)
    assert maps[0].shape == (8, 2 * half + 2, 2 * half + 2)
    alone, second = induction.attention(model, samples[:1])[0], range(half + 2, 2 * half + 2)
    naive = sum(float(maps[1][5, at, at - half + 1]) for at in second) / half
    assert alone["prefix"][1][5] == pytest.approx(naive)
    assert model.config._attn_implementation == "sdpa"


def test_random_heads_are_others_of_the_same_layers() -> None:
    every = [(layer, head) for layer in range(3) for head in range(5)]
    chosen = [(0, 1), (2, 0), (2, 3)]
    drawn = [induction.others(chosen, every, random.Random(seed)) for seed in range(20)]
    assert len({*map(tuple, drawn)}) > 5
    for heads in drawn:
        assert Counter(layer for layer, _ in heads) == {0: 1, 2: 2}
        assert len({*heads} - {*chosen}) == 3


def test_a_study_is_kept_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tokenizer()
    decoder(vocab_size=len(words), num_hidden_layers=2).save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    for name, value in {"QUESTIONS": 2, "FRESH": 2, "SEQUENCES": 2, "DRAWS": 2}.items():
        monkeypatch.setattr(induction, name, value)
    monkeypatch.setattr(induction, "REMOVED", {"words": (1, 2), "tokens": (1,)})
    few = {"permutations": 2, "coalitions": 2, "contexts": 2}
    monkeypatch.setattr(induction, "OPTIONS", induction.OPTIONS | few)
    folder, figure = tmp_path / "study", tmp_path / "induction.png"
    given = [str(folder), "--model", str(tmp_path / "model"), "--figure", str(figure), "--json"]
    induction.main(given)
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    printed = capsys.readouterr().out.splitlines()[:-1]
    figure.unlink()
    induction.main(given)
    assert capsys.readouterr().out.splitlines()[:-1] == printed
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before
    assert figure.stat().st_size > 1000
    rows = kept(folder / "removal-words.json")
    assert Counter((row["arm"], row["removed"]) for row in rows) == {
        ("none", 0): 1,
        **{(arm, k): 1 for arm in ("shapley", "pattern") for k in (1, 2)},
        ("random", 1): 2,
        ("random", 2): 2,
    }
    monkeypatch.setattr(induction, "FRESH", 3)
    with pytest.raises(SystemExit, match="choose another one"):
        induction.main(given)
