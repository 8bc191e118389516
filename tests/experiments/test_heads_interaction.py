"""The script that measures head interaction, on a small decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_decoders import WORDS, adapted, decoder, tokenizer

pytest.importorskip("peft", reason="the extra 'hf' is not installed")

from diabat.heads import HeadInteractions
from experiments.heads import interaction


def words(count: int, seed: int) -> str:
    generator = torch.Generator().manual_seed(seed)
    return " ".join(WORDS[k] for k in torch.randint(4, len(WORDS), (count,), generator=generator).tolist())


def test_interaction_is_that_of_the_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoder().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"text": f"{words(6, k)} ", "completion": words(8, k + 50)} for k in range(6)]
    rows += [{"text": words(12, k + 90)} for k in range(6)]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(map(json.dumps, rows)))
    adapted(decoder()).save_pretrained(tmp_path / "adapter")
    arguments = [str(tmp_path / "model"), str(texts), "--batch-size", "4", "--layers", "0", "2"]
    interaction.main([*arguments, "--json", "--adapter", str(tmp_path / "adapter")])
    found = json.loads(capsys.readouterr().out)["rows"]
    batches = interaction.read_batches(texts, tokenizer(), 4, 1024)
    expected = HeadInteractions(adapted(decoder()), [0, 2]).measure(batches)
    assert (batches[0]["labels"] == -100).sum() == 4 * 6
    assert [row["layer"] for row in found] == [0, 2]
    for row in found:
        of_layer = expected[row["layer"]]
        torch.testing.assert_close(torch.tensor(row["G"], dtype=torch.float64), of_layer.G)
        assert row["gamma"] == pytest.approx(of_layer.gamma)
        assert row["tokens"] == of_layer.tokens
        assert row["invariant_gamma"] == pytest.approx(of_layer.invariant_gamma)
    interaction.main([*arguments, "--figure", str(tmp_path / "g.png")])
    assert "gamma" in capsys.readouterr().out
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
