"""``diabat heads train``: strict configuration, ablations, resuming, and what is saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from diabat.checks import ArgumentError
from diabat.cli import app
from diabat.config.errors import ConfigError
from diabat.config.game import game_config_yaml, load_game_config, shipped_trainings
from diabat.runs.heads.texts.packed import training_examples
from diabat.runs.heads.training import _arguments, lora_config, triangular_alphas
from diabat.tasks.data import DataError

from . import adapted as tiny
from .adapted import tokenizer

pytest.importorskip("peft", reason="the extra 'hf' is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["heads", "train", *map(str, arguments)])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A model, texts and a configuration of four steps."""
    tiny.decoder().save_pretrained(tmp_path / "model")
    tokenizer(tmp_path).save_pretrained(tmp_path / "model")
    g = torch.Generator().manual_seed(0)
    lines = [" ".join(f"w{i}" for i in torch.randint(3, 48, (20,), generator=g).tolist()) for _ in range(40)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    path = tmp_path / "config.yaml"
    path.write_text(
        f"""
model: {tmp_path / "model"}
data: {{file: {tmp_path / "texts.txt"}, length: 16}}
lora: {{r: 4, alpha: 8}}
game: {{layers: [1]}}
trainer: {{max_steps: 4, per_device_train_batch_size: 8, use_cpu: true, save_steps: 2,
          logging_steps: 1, learning_rate: 0.01, dataloader_pin_memory: false}}
output: {tmp_path / "out"}
"""
    )
    return path


def test_it_trains_saves_an_adapter_and_resumes(config: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    done = run(config, "--json", "--offline")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["steps"] == 4
    assert {"loss", "game/gamma", "game/weight_abt"} <= found.keys()
    loaded = PeftModel.from_pretrained(tiny.decoder(), found["adapter"])
    assert any(p.abs().max() > 0 for n, p in loaded.named_parameters() if "lora_B" in n)
    again = run(config, "--resume", "--offline")
    assert again.exit_code == 1
    assert "finished: step 4 of 4" in again.stderr
    # The second half again, from the checkpoint of step 2.
    whole = {n: p.clone() for n, p in loaded.named_parameters() if "lora_" in n}
    shutil.rmtree(tmp_path / "out" / "checkpoint-4")
    shutil.rmtree(tmp_path / "out" / "adapter")
    assert run(config, "--resume", "--offline").exit_code == 0
    again = PeftModel.from_pretrained(tiny.decoder(), found["adapter"])
    assert max(float((p - whole[n]).abs().max()) for n, p in again.named_parameters() if n in whole) < 1e-6


def test_half_precision_is_the_default_where_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.is_torch_bf16_gpu_available", lambda: False)
    for name in shipped_trainings():
        assert not _arguments(load_game_config(name), progress=False).bf16


@pytest.mark.parametrize(
    "overrides",
    [
        ["game.losses=[]"],
        ["game.losses=[abt]", "game.combination=sum", "game.target=zero"],
        ["game.losses=[disagreement,entropy]", "game.combination=sum"],
        ["lora.layers=[1,2]", "game.ldb_layers=[1,2]"],
        ["lora.peak=1", "lora.range=4", "game.nash_every=2", "game.rho=last_step"],
    ],
)
def test_ablations_are_overrides(config: Path, overrides: list[str]) -> None:
    done = run(config, *overrides, "trainer.max_steps=2", "--offline")
    assert done.exit_code == 0, done.output
    assert "Adapter: " in done.stdout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["gane.layers=[1]"], "gane: unknown key. Did you mean 'game'?"),
        (["game.layer=[1]"], "game.layer: unknown key. Did you mean 'game.layers'?"),
        (["game.layers=[-1]"], "game.layers: expected different integers >= 0, got [-1]."),
        (["game.target=one"], "game.target: expected 'identity' or 'zero', got 'one' (string)."),
        (["lora.r=0"], "lora.r: expected a number >= 1, got 0 (integer)."),
        (["lora.r=1.5"], "lora.r: expected"),
        (["lora.layers=[7]"], "lora.layers: expected layers below 3, got 7."),
        (["lora.peak=1", "lora.range=100"], "lora.range: expected a range that leaves every alpha positive"),
        (["data.dataset=x"], "data.file: expected either file or dataset, got both or none."),
        (["data.length=100000"], "data.file: expected 100000 tokens or more in"),
        (["data.file=nowhere.txt"], "data.file: expected UTF-8 text in 'nowhere.txt'"),
        (
            ["trainer.learning_rat=1"],
            "trainer.learning_rat: expected an argument of TrainingArguments. Did you",
        ),
        (["trainer.output_dir=x"], "trainer.output_dir: expected the folder as output, got it here."),
        (["game.layers=[5]"], "layers: expected a layer with attention, 0 .. 2, got 5."),
        (["model=nowhere/at-all"], "nowhere/at-all"),
    ],
)
def test_refusals(config: Path, overrides: list[str], message: str) -> None:
    done = run(config, *overrides, "--offline")
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split())


def test_folders_are_not_mixed_up(config: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "something").write_text("")
    assert "output: expected a new or empty folder" in run(config, "--offline").stderr
    assert (
        "output: expected a run of this configuration to resume"
        in run(config, "--resume", "--offline").stderr
    )
    with pytest.raises(ConfigError, match="Did you mean 'game-lora'"):
        load_game_config("game-lor")


@pytest.mark.parametrize("name", shipped_trainings())
def test_shipped_configurations_are_valid(name: str, tmp_path: Path) -> None:
    config = load_game_config(name)
    (tmp_path / "again.yaml").write_text(game_config_yaml(config))
    assert load_game_config(tmp_path / "again.yaml") == config
    assert config.lora.targets == ("q_proj", "k_proj", "v_proj", "o_proj")


def test_alphas_of_the_triangle() -> None:
    alphas = triangular_alphas(24, 19, 32, 50)
    assert sum(alphas) / 24 == pytest.approx(32)
    assert max(alphas) == alphas[19] == pytest.approx(min(alphas) + 50)
    assert alphas[:20] == sorted(alphas[:20])
    config = load_game_config("game-lora", ["lora.peak=19"]).lora
    assert list(lora_config(config, 24).alpha_pattern.values()) == pytest.approx(alphas)


def test_every_adapter_has_the_alpha_of_its_layer() -> None:
    import warnings

    from peft import get_peft_model

    options = load_game_config("game-lora", ["lora.peak=1", "lora.range=30"]).lora
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(tiny.decoder(), lora_config(options, 3))
    found = [layer.self_attn.o_proj.scaling["default"] * 16 for layer in model.base_model.model.model.layers]
    assert found == pytest.approx(triangular_alphas(3, 1, 32, 30))


def test_texts_are_packed_in_order(tmp_path: Path) -> None:
    words = tokenizer(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "w3 w4 w5"}\n\n{"text": "w6 w7"}\n{"text": "w8"}\n')
    data = load_game_config(
        "game-lora", [f"data.file={tmp_path / 'a.jsonl'}", "data.dataset=null", "data.length=4"]
    ).data
    rows = [row["input_ids"].tolist() for row in training_examples(data, words)]
    assert rows == [[3, 4, 5, 2], [6, 7, 2, 8]]
    (tmp_path / "a.jsonl").write_text('{"text": "w3"}\n{"words": "w6 w7"}\n')
    with pytest.raises(DataError, match="line 2: expected a text under 'text', got none"):
        training_examples(data, words)


def test_argument_error_is_one_kind() -> None:
    with pytest.raises(ArgumentError, match=r"lora.peak: expected layers below 3, got 5"):
        lora_config(load_game_config("game-lora", ["lora.peak=5"]).lora, 3)
