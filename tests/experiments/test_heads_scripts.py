"""The scripts on heads, end to end on small decoders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoders import WORDS, adapted, decoder, tokenizer

pytest.importorskip("peft", reason="the extra 'hf' is not installed")
pytest.importorskip("datasets", reason="the extra 'hf' is not installed")

from diabat.documents.overrides import apply_overrides
from diabat.documents.yaml_files import read_mapping
from diabat.heads import HeadInteractions
from experiments.heads import interaction, train

# Of peft and datasets.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    decoder().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def words(count: int, seed: int) -> str:
    generator = torch.Generator().manual_seed(seed)
    return " ".join(WORDS[k] for k in torch.randint(4, len(WORDS), (count,), generator=generator).tolist())


def test_training_saves_an_adapter_and_resumes(model: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    texts = lines(tmp_path / "texts.jsonl", [{"text": words(20, seed)} for seed in range(20)])
    config = read_mapping(Path(train.__file__).parent / "game-lora.yaml")
    changes = [
        f"model={model}", "data.path=json", f"data.data_files={texts}", "data.streaming=false", "length=16",
        "game.layers=[1]", "lora.r=4", "peak=1", "range=20", "trainer.max_steps=4", "trainer.use_cpu=true",
        "trainer.save_steps=2", "trainer.gradient_accumulation_steps=1",
        "trainer.dataloader_pin_memory=false", f"output={tmp_path / 'out'}", "trainer.disable_tqdm=true",
    ]  # fmt: skip
    settings = apply_overrides(config, changes)
    assert train.train(settings).state.global_step == 4
    saved: Any = PeftModel.from_pretrained(decoder(), tmp_path / "out" / "adapter")
    layers = saved.base_model.model.model.layers
    scales = [layer.self_attn.o_proj.scaling["default"] * 4 for layer in layers]
    assert scales == pytest.approx(train.triangular_alphas(3, 1, 32, 20))
    whole = {name: p.clone() for name, p in saved.named_parameters() if "lora_B" in name}
    assert any(bool(p.any()) for p in whole.values())
    shutil.rmtree(tmp_path / "out" / "checkpoint-4")
    train.train(settings, resume=True)
    again = PeftModel.from_pretrained(decoder(), tmp_path / "out" / "adapter")
    assert max(float((p - whole[n]).abs().max()) for n, p in again.named_parameters() if n in whole) < 1e-6
    with pytest.raises(SystemExit):
        train.main([str(Path(train.__file__).parent / "game-lora.yaml"), *changes])


def test_alphas_of_the_triangle() -> None:
    alphas = train.triangular_alphas(24, 19, 32, 50)
    assert sum(alphas) / 24 == pytest.approx(32)
    assert max(alphas) == alphas[19] == pytest.approx(min(alphas) + 50)
    assert alphas[:20] == sorted(alphas[:20])


def test_texts_are_packed_in_order() -> None:
    texts = [
        {"text": f"{WORDS[4]} {WORDS[5]} {WORDS[6]}"},
        {"text": f"{WORDS[7]} {WORDS[8]}"},
        {"text": WORDS[9]},
    ]
    rows = [row["input_ids"].tolist() for row in train.PackedTexts(texts, "text", tokenizer(), 4)]
    assert rows == [[4, 5, 6, 2], [7, 8, 2, 9]]


def test_interaction_is_that_of_the_library(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"{words(6, k)} ", "completion": words(8, k + 50)} for k in range(6)]
    rows += [{"text": words(12, k + 90)} for k in range(6)]
    texts = lines(tmp_path / "texts.jsonl", rows)
    adapted(decoder()).save_pretrained(tmp_path / "adapter")
    arguments = [str(model), str(texts), "--batch-size", "4", "--layers", "0", "2"]
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
