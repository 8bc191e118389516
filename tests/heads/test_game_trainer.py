"""GameTrainer: what a Trainer does stays as it is, the game included."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import tiny_decoders
import torch
from run_checks import torchrun

from diabat.checkpoints import LOCK, OutputError, locked
from diabat.checks import ArgumentError
from diabat.heads import GameMixin
from diabat.huggingface import load_adapter

from . import game as tiny

pytest.importorskip("accelerate", reason="the extra 'hf' is not installed")
pytestmark = [
    # Trainer reads a property that transformers renames; torch.load warns of its future default.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]


def test_it_trains_as_written_and_saves_an_ordinary_adapter(tmp_path: Path) -> None:
    model, examples = tiny.adapted(), tiny_decoders.examples(48, padding=3)
    before = tiny.adapters(model)
    trainer = tiny.trainer(tmp_path, model, tiny.options(), examples)
    trainer.train()
    assert tiny.gap(before, tiny.adapters(model)) > 1e-3
    lines = tiny.logged(trainer)
    assert len(lines) == 6
    assert {"game/ldb", "game/abt", "game/gamma", "game/weight_ldb", "game/weight_abt"} <= lines[0].keys()
    # What is logged as the loss is the cross-entropy of the batch at that step.
    first = {k: torch.stack([row[k] for row in examples[:8]]) for k in examples[0]}
    assert lines[0]["loss"] == pytest.approx(tiny.adapted()(**first).loss.item(), abs=1e-3)
    trainer.save_model(str(tmp_path / "adapter"))
    kept = {p.name for p in (tmp_path / "adapter").iterdir() if p.suffix in (".json", ".safetensors")}
    assert kept == {"adapter_config.json", "adapter_model.safetensors"}
    loaded = load_adapter(tiny.decoder(), tmp_path / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(loaded(**tiny.batch()).logits, model.eval()(**tiny.batch()).logits)


def test_the_schedule_is_that_of_the_whole_training(tmp_path: Path) -> None:
    """λ rises in the first third of six steps and falls in the last."""
    game = tiny.options(combination="sum", losses=["ldb"], ldb_weight=1.0, warmup=1 / 3, cooldown=2 / 3)
    trainer = tiny.trainer(tmp_path, tiny.adapted(), game)
    trainer.train()
    found = [float(line["game/weight_ldb"]) for line in tiny.logged(trainer)]
    assert found == pytest.approx([0, 0.5, 1, 1, 1, 0.5], abs=1e-3)


def test_without_losses_it_is_the_trainer(tmp_path: Path) -> None:
    from transformers import Trainer

    plain, game = tiny.adapted(), tiny.adapted()
    reference = tiny.trainer(tmp_path, game, tiny.options(losses=[]))
    Trainer(plain, reference.args, train_dataset=tiny_decoders.examples(48)).train()
    reference.train()
    assert tiny.gap(tiny.adapters(plain), tiny.adapters(game)) == 0


@pytest.mark.parametrize(
    ("changes", "mean"), [({}, False), ({"combination": "sum", "rho": "last_step"}, True)], ids=str
)
def test_accumulation_is_that_of_the_whole_batch(tmp_path: Path, changes: dict[str, Any], mean: bool) -> None:
    """Every four examples twice, so that the statistics of Barlow Twins are those of the whole batch.

    Where the model takes no number of items, the loss is a mean, which training_step divides by the micro-batches.
    """
    padding = 0 if mean else 2
    examples = [row for seed in range(3) for row in tiny_decoders.examples(4, padding=padding, seed=seed) * 2]
    halves = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainers = [
        tiny.trainer(tmp_path, tiny.adapted(), tiny.options(**changes), examples, max_steps=3, **settings)
        for settings in ({}, halves)
    ]
    for trainer in trainers:
        if mean:
            trainer.model_accepts_loss_kwargs = False
        trainer.train()
    assert tiny.gap(*(tiny.adapters(trainer.model) for trainer in trainers)) < 1e-4  # steps are of 1e-2
    for a, b in zip(*(tiny.logged(trainer) for trainer in trainers), strict=True):
        # Trainer rounds what it logs of losses.
        assert {k: pytest.approx(v, rel=1e-3, abs=1e-4) for k, v in a.items()} == b


@pytest.mark.parametrize(
    "changes", [{"nash_every": 2, "rho": "last_step"}, {"combination": "sum", "rho": "last_step"}], ids=str
)
def test_a_resumed_run_is_an_uninterrupted_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    kinds = {"save_strategy": "steps", "save_steps": 2}, {"restore_callback_states_from_checkpoint": True}
    whole, second = (
        saving(tmp_path, tiny.options(**changes), **{"max_steps": 4, "save_strategy": "no"} | kind)
        for kind in kinds
    )
    whole.train()
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert tiny.gap(tiny.adapters(whole.model), tiny.adapters(second.model)) < 1e-6
    # Nash hides a lost running mean in the weights, so that it is compared itself.
    first, other = whole.game.state_dict(), second.game.state_dict()
    assert first["ema"] == pytest.approx(other["ema"], abs=1e-6)
    assert first["ema"] != 20.0
    assert first == other


def saving(folder: Path, game: Any = None, **changes: Any) -> Any:
    """A trainer of two steps that saves after each."""
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    model = tiny.adapted(lora_dropout=0.1)
    return tiny.trainer(folder, model, game or tiny.options(), **settings | changes)


class Killed(BaseException):
    """As a signal that no handler sees."""


@pytest.mark.parametrize(("file", "at"), [("adapter_model.safetensors", 1), ("trainer_state.json", 2)])
@pytest.mark.slow
def test_a_killed_save_goes_on(tmp_path: Path, file: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the checkpoint before, or anew if there is none; one file is cut, and those behind it are missing."""
    from transformers import Trainer

    whole = saving(tmp_path / "whole")
    whole.train()

    def cut(trainer: Any, *arguments: Any) -> None:
        saved(trainer, *arguments)
        folder = Path(trainer.args.output_dir) / f"checkpoint-{at}"
        if folder.is_dir():
            written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
            for path, time in written.items():
                if path.name != file and time >= written[folder / file]:
                    path.unlink()
            (folder / file).write_bytes((folder / file).read_bytes()[:100])
            raise Killed

    def loaded(trainer: Any, folder: str, *arguments: Any) -> None:
        begun.append(Path(folder).name)
        load(trainer, folder, *arguments)

    saved, load, begun = Trainer._save_checkpoint, Trainer._load_from_checkpoint, list[str]()
    monkeypatch.setattr(Trainer, "_save_checkpoint", cut)
    with pytest.raises(Killed):
        saving(tmp_path / "run").train()
    monkeypatch.setattr(Trainer, "_save_checkpoint", saved)
    monkeypatch.setattr(Trainer, "_load_from_checkpoint", loaded)
    again = saving(tmp_path / "run")
    again.train(resume_from_checkpoint=True)
    assert begun == (["checkpoint-1"] if at == 2 else [])
    assert again.game.state_dict() == whole.game.state_dict()
    assert tiny.gap(tiny.adapters(again.model), tiny.adapters(whole.model)) < 1e-6


@pytest.mark.slow
def test_a_finished_training_is_not_trained_on(tmp_path: Path) -> None:
    first = saving(tmp_path)
    first.train()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    # The number of steps does not divide into epochs, where Trainer goes on to the end of a batch.
    for folder in (True, str(tmp_path / "checkpoint-2")):
        with pytest.raises(ArgumentError, match=r"^resume_from_checkpoint: .* finished: step 2 of 2"):
            saving(tmp_path).train(resume_from_checkpoint=folder)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == before
    longer = saving(tmp_path, max_steps=3)
    longer.train(resume_from_checkpoint=True)
    assert longer.state.global_step == 3


def test_a_folder_has_one_training_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several processes of one training, the first has the lock."""
    with locked(tmp_path):
        for resumed in (None, True):
            with pytest.raises(
                OutputError, match=r"^args\.output_dir: run folder .* is locked by another process\.$"
            ):
                saving(tmp_path).train(resume_from_checkpoint=resumed)
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
        second = saving(tmp_path, max_steps=1, save_strategy="no")
        monkeypatch.setattr(type(second.args), "process_index", 1)
        second.train()
    monkeypatch.undo()
    first = saving(tmp_path)
    first.train()
    with locked(tmp_path):  # free again
        assert first.state.global_step == 2


def test_a_spoiled_checkpoint_is_refused(tmp_path: Path) -> None:
    saving(tmp_path).train()
    file = tmp_path / "checkpoint-1" / "trainer_state.json"
    content = json.loads(file.read_text())
    whole = "expected a whole checkpoint of GameTrainer, got '.*checkpoint-1', whose trainer_state.json is"
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("", {}, whole),
        ("{}", {}, whole),
        (json.dumps(content | {"global_step": 2}), {}, "expected a game state of step 2, got one of step 1"),
        (json.dumps(content), {"abt_weight": 0.5},
         "expected the options of the run, abt_weight 0.5, got 0.179"),
    ]  # fmt: skip
    for text, changes, message in cases:
        file.write_text(text)
        second = tiny.trainer(tmp_path, tiny.adapted(), tiny.options(**changes), max_steps=3)
        with pytest.raises(ArgumentError, match=message):
            second.train(resume_from_checkpoint=str(file.parent))


def test_without_a_checkpoint_a_resumed_training_begins_anew(tmp_path: Path) -> None:
    """As a plain Trainer's checkpoints are none."""
    from transformers import Trainer

    folder = tmp_path / "checkpoint-1"
    plain = saving(tmp_path / "plain")
    Trainer(plain.model, plain.args, train_dataset=tiny_decoders.examples(16)).train()
    shutil.copytree(tmp_path / "plain" / "checkpoint-1", folder)
    found = saving(tmp_path)
    found.train(resume_from_checkpoint=True)
    assert found.state.global_step == 2


@pytest.mark.slow
def test_frozen_weights_in_bfloat16_and_fused_projections(tmp_path: Path) -> None:
    """GPT-2 has one module for queries, keys and values, and transposed weights."""
    frozen = tiny.adapted(tiny.decoder(dtype=torch.bfloat16))
    half = tiny.trainer(tmp_path, frozen, tiny.options(), bf16=True, max_steps=2)
    whole = tiny.trainer(tmp_path, tiny.adapted(), tiny.options(), max_steps=2)
    half.train()
    whole.train()
    for a, b in zip(tiny.logged(half), tiny.logged(whole), strict=True):
        assert a["game/abt"] == pytest.approx(b["game/abt"], rel=0.05)
        assert a["game/ldb"] == pytest.approx(b["game/ldb"], rel=0.1, abs=0.02)
    fused = tiny.adapted(tiny_decoders.decoder("gpt2"))
    before = tiny.adapters(fused)
    trainer = tiny.trainer(tmp_path, fused, tiny.options(), max_steps=2)
    trainer.train()
    assert tiny.gap(before, tiny.adapters(fused)) > 0
    assert 0 < tiny.logged(trainer)[1]["game/gamma"] < 8


@pytest.mark.parametrize("changes", [{}, {"combination": "sum", "rho": "last_step"}], ids=str)
def test_checkpointing_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    on = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    models = [tiny.adapted(), tiny.adapted()]
    for model, settings in zip(models, ({}, on), strict=True):
        tiny.trainer(tmp_path, model, tiny.options(**changes), max_steps=2, **settings).train()
    assert tiny.gap(*(tiny.adapters(model) for model in models)) < 1e-6


SHARED: dict[str, dict[str, Any]] = {
    "all": {"nash_every": 2},
    "sum": {"losses": ["ldb"], "combination": "sum", "rho": "last_step"},
    "nash": {"losses": ["ldb"], "nash_every": 2},
}
SCRIPT = """
import os
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from heads.test_game_trainer import SHARED, shared
for kind in SHARED:
    trainer, found = shared(Path(sys.argv[2]), kind, 4)
    torch.save(found, Path(sys.argv[2]) / f"{kind}-{trainer.args.process_index}.pt")
torch.distributed.barrier()
os._exit(0)  # threads of gloo that still run at the end of the interpreter abort the process now and then
"""


def shared(folder: Path, kind: str, size: int) -> tuple[Any, dict[str, Any]]:
    """Train on 48 examples, ``size`` of them per process and step; the trainer, its weights and its state."""
    settings = {"per_device_train_batch_size": size, "ddp_find_unused_parameters": False}
    trainer = tiny.trainer(folder, tiny.adapted(), tiny.options(**SHARED[kind]), **settings)
    trainer.train()
    return trainer, {"weights": tiny.adapters(trainer.model), "state": trainer.game.state_dict()}


@pytest.mark.slow
def test_two_processes_agree_with_each_other_and_with_one(tmp_path: Path) -> None:
    """Barlow Twins takes the statistics of each process; without it two processes do what one does."""
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[1]
    torchrun(tmp_path / "script.py", root, tmp_path, cwd=root.parent)
    for kind in SHARED:
        first, second = (torch.load(tmp_path / f"{kind}-{rank}.pt", weights_only=True) for rank in (0, 1))
        assert tiny.gap(first["weights"], second["weights"]) == 0
        assert first["state"] == second["state"]
        if kind == "all":
            assert first["state"]["ema"] != 20
            continue
        one = shared(tmp_path, kind, 8)[1]
        assert tiny.gap(first["weights"], one["weights"]) < 2e-5
        for layer, rows in one["state"]["products"].items():
            alone, both = torch.tensor(rows), torch.tensor(first["state"]["products"][layer])
            # Gradients of a mean over half of the tokens are larger: only their cosines count.
            torch.testing.assert_close(both / both.trace(), alone / alone.trace(), rtol=1e-2, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl")
def test_it_goes_before_the_trainer_of_trl(tmp_path: Path) -> None:
    trl, datasets = importlib.import_module("trl"), importlib.import_module("datasets")

    class GameSFTTrainer(GameMixin, trl.SFTTrainer):  # type: ignore[misc, name-defined]
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [{"input_ids": row["input_ids"].tolist()} for row in tiny_decoders.examples(24)]
        args = trl.SFTConfig(
            str(tmp_path), max_steps=3, per_device_train_batch_size=8, report_to=[], use_cpu=True, bf16=False,
            disable_tqdm=True, logging_steps=1, save_strategy="no", gradient_checkpointing=False, loss_type="nll",
        )  # fmt: skip
        trainer = GameSFTTrainer(
            tiny.adapted(), args, train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tiny_decoders.tokenizer(), game=tiny.options(),
        )  # fmt: skip
        before = tiny.adapters(trainer.model)
        trainer.train()
    assert tiny.gap(before, tiny.adapters(trainer.model)) > 0
    assert len(tiny.logged(trainer)) == 3
    assert "game/gamma" in tiny.logged(trainer)[0]
