"""GameTrainer: what a Trainer does stays as it is, the game included."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.checks import ArgumentError
from diabat.huggingface import GameMixin, GameOptions, GameTrainer
from diabat.samplers.base import UnsupportedError

from . import adapted as tiny

pytest.importorskip("accelerate", reason="the extra 'hf' is not installed")
pytestmark = [
    # Trainer reads a property that transformers renames; torch.load warns of its future default.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]


def options(**changes: Any) -> GameOptions:
    defaults: dict[str, Any] = {"layers": [1]}
    return GameOptions(**defaults | changes)


def logged(trainer: Any) -> list[dict[str, float]]:
    """The lines of training, without what differs between runs."""
    return [
        {k: v for k, v in line.items() if k == "loss" or k.startswith("game/")}
        for line in trainer.state.log_history
        if "loss" in line
    ]


def test_it_trains_as_written_and_saves_an_ordinary_adapter(tmp_path: Path) -> None:
    from peft import PeftModel

    model = tiny.adapted()
    before = tiny.adapters(model)
    trainer = tiny.trainer(tmp_path, model, tiny.rows(48, padding=3), options())
    trainer.train()
    assert tiny.gap(before, tiny.adapters(model)) > 1e-3
    lines = logged(trainer)
    assert len(lines) == 6
    assert {"game/ldb", "game/abt", "game/gamma", "game/weight_ldb", "game/weight_abt"} <= lines[0].keys()
    # What is logged as the loss is the cross-entropy of the batch at that step.
    first = {k: torch.stack([row[k] for row in tiny.rows(48, padding=3)[:8]]) for k in tiny.rows(1)[0]}
    assert lines[0]["loss"] == pytest.approx(tiny.adapted()(**first).loss.item(), abs=1e-3)
    trainer.save_model(str(tmp_path / "adapter"))
    assert sorted(
        p.name for p in (tmp_path / "adapter").iterdir() if p.suffix in (".json", ".safetensors")
    ) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = PeftModel.from_pretrained(tiny.decoder(), tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(**tiny.batch()).logits, model.eval()(**tiny.batch()).logits)


def test_without_losses_it_is_the_trainer(tmp_path: Path) -> None:
    from transformers import Trainer

    plain, game = tiny.adapted(), tiny.adapted()
    reference = tiny.trainer(tmp_path, game, tiny.rows(48), options(losses=[]))
    Trainer(plain, reference.args, train_dataset=tiny.rows(48)).train()
    reference.train()
    assert tiny.gap(tiny.adapters(plain), tiny.adapters(game)) == 0


@pytest.mark.parametrize("changes", [{}, {"combination": "sum", "rho": "last_step"}])
def test_accumulation_gives_the_steps_of_the_whole_batch(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Every four examples twice, so that the statistics of Barlow Twins are those of the whole batch."""
    halves = [tiny.rows(4, padding=2, seed=seed) for seed in range(6)]
    examples = [row for half in halves for row in half * 2]
    one, two = tiny.adapted(), tiny.adapted()
    whole = tiny.trainer(tmp_path, one, examples, options(**changes))
    parts = tiny.trainer(
        tmp_path,
        two,
        examples,
        options(**changes),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    whole.train()
    parts.train()
    assert tiny.gap(tiny.adapters(one), tiny.adapters(two)) < 2e-5
    for a, b in zip(logged(whole), logged(parts), strict=True):
        # Trainer rounds what it logs of losses.
        assert {k: pytest.approx(v, rel=1e-3, abs=1e-4) for k, v in a.items()} == b


def test_a_loss_that_is_a_mean_is_accumulated_alike(tmp_path: Path) -> None:
    """Where the model takes no number of items, training_step divides by the micro-batches."""
    examples = [row for seed in range(6) for row in tiny.rows(4, seed=seed) * 2]
    models = [tiny.adapted(), tiny.adapted()]
    for model, changes in zip(
        models, ({}, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}), strict=True
    ):
        trainer = tiny.trainer(tmp_path, model, examples, options(), **changes)
        trainer.model_accepts_loss_kwargs = False
        trainer.train()
    assert tiny.gap(*(tiny.adapters(model) for model in models)) < 2e-5


@pytest.mark.parametrize(
    "changes", [{"nash_every": 2, "rho": "last_step"}, {"combination": "sum", "rho": "last_step"}, {}]
)
def test_a_resumed_run_is_an_uninterrupted_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    dropout: dict[str, Any] = {"lora_dropout": 0.1}
    whole = tiny.trainer(
        tmp_path / "a",
        tiny.adapted(**dropout),
        tiny.rows(48),
        options(**changes),
        save_strategy="steps",
        save_steps=3,
    )
    whole.train()
    checkpoint = tmp_path / "a" / "checkpoint-3"
    second = tiny.trainer(
        tmp_path / "a",
        tiny.adapted(**dropout),
        tiny.rows(48),
        options(**changes),
        restore_callback_states_from_checkpoint=True,
    )
    second.train(resume_from_checkpoint=str(checkpoint))
    assert tiny.gap(tiny.adapters(whole.model), tiny.adapters(second.model)) < 1e-6
    # Nash hides a lost running mean in the weights, so that it is compared itself.
    first, other = whole.game.state_dict(), second.game.state_dict()
    assert first["ema"] == pytest.approx(other["ema"], abs=1e-6)
    assert first["ema"] != 20.0
    assert first == other
    assert json.loads((checkpoint / "game_state.json").read_text())["steps"] == 3


def test_bfloat16_runs(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, tiny.adapted(), tiny.rows(48), options(), bf16=True, max_steps=3)
    trainer.train()
    exact = tiny.trainer(tmp_path, tiny.adapted(), tiny.rows(48), options(), max_steps=3)
    exact.train()
    for a, b in zip(logged(trainer), logged(exact), strict=True):
        assert a["game/abt"] == pytest.approx(b["game/abt"], rel=0.05)
        assert a["game/ldb"] == pytest.approx(b["game/ldb"], rel=0.1, abs=0.02)


def test_frozen_weights_in_bfloat16_and_fused_projections(tmp_path: Path) -> None:
    """GPT-2 has one module for queries, keys and values, and transposed weights."""
    import transformers as t

    frozen = tiny.adapted(tiny.decoder().to(torch.bfloat16))
    tiny.trainer(tmp_path, frozen, tiny.rows(16), options(), bf16=True, max_steps=2).train()
    config = t.GPT2Config(
        vocab_size=tiny.VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
    )  # fmt: skip
    fused = tiny.adapted(t.GPT2LMHeadModel(config), targets=("c_attn", "attn.c_proj"), fan_in_fan_out=True)
    before = tiny.adapters(fused)
    trainer = tiny.trainer(tmp_path, fused, tiny.rows(16), options(), max_steps=2)
    trainer.train()
    assert tiny.gap(before, tiny.adapters(fused)) > 0
    assert 0 < logged(trainer)[1]["game/gamma"] < 4


@pytest.mark.parametrize("changes", [{}, {"combination": "sum"}, {"combination": "sum", "rho": "last_step"}])
def test_checkpointing_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    models = [tiny.adapted(), tiny.adapted()]
    for model, on in zip(models, (False, True), strict=True):
        settings = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
        tiny.trainer(
            tmp_path, model, tiny.rows(48), options(**changes), max_steps=3, **(settings if on else {})
        ).train()
    assert tiny.gap(*(tiny.adapters(model) for model in models)) < 1e-6


def test_evaluation_is_that_of_the_trainer(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, tiny.adapted(), tiny.rows(8), options())
    found = trainer.evaluate(tiny.rows(8, seed=3))["eval_loss"]
    with torch.no_grad():
        assert found == pytest.approx(trainer.model.eval()(**tiny.batch(8, seed=3)).loss.item(), abs=1e-4)


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
from game_lora.test_game_trainer import SHARED, shared
for kind in SHARED:
    trainer, found = shared(Path(sys.argv[2]), kind, 4)
    torch.save(found, Path(sys.argv[2]) / f"{kind}-{trainer.args.process_index}.pt")
torch.distributed.barrier()
os._exit(0)  # threads of gloo that still run at the end of the interpreter abort the process now and then
"""


def shared(folder: Path, kind: str, size: int) -> tuple[Any, dict[str, Any]]:
    """Train on 48 examples, ``size`` of them per process and step; the trainer, its weights and its state."""
    model, game = tiny.adapted(), options(**SHARED[kind])
    settings = {"per_device_train_batch_size": size, "ddp_find_unused_parameters": False}
    trainer = tiny.trainer(folder, model, tiny.rows(48), game, **settings)
    trainer.train()
    return trainer, {"weights": tiny.adapters(model), "state": trainer.game.state_dict()}


def test_two_processes_agree_with_each_other_and_with_one(tmp_path: Path) -> None:
    """Barlow Twins takes the statistics of each process; without it two processes do what one does."""
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[1]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(tmp_path / "script.py"), str(root), str(tmp_path)],
        cwd=root.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
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
        data = datasets.Dataset.from_list([{"input_ids": row["input_ids"].tolist()} for row in tiny.rows(24)])
        args = trl.SFTConfig(
            str(tmp_path), max_steps=3, per_device_train_batch_size=8, report_to=[], use_cpu=True, bf16=False,
            disable_tqdm=True, logging_steps=1, save_strategy="no", gradient_checkpointing=False, loss_type="nll",
        )  # fmt: skip
        trainer = GameSFTTrainer(
            tiny.adapted(), args, train_dataset=data, processing_class=tokenizer(tmp_path), game=options()
        )
        before = tiny.adapters(trainer.model)
        trainer.train()
    assert tiny.gap(before, tiny.adapters(trainer.model)) > 0
    assert len(logged(trainer)) == 3
    assert "game/gamma" in logged(trainer)[0]


def tokenizer(folder: Path) -> Any:
    """Words w0 .. w47."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, tiny.VOCABULARY)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def resumed(folder: Path, spoil: Callable[[Path], None], **changes: Any) -> None:
    trainer = tiny.trainer(
        folder, tiny.adapted(), tiny.rows(24), options(), save_strategy="steps", save_steps=1, max_steps=2
    )
    trainer.train()
    spoil(folder / "checkpoint-1" / "game_state.json")
    second = tiny.trainer(folder, tiny.adapted(), tiny.rows(24), options(**changes), max_steps=2)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-1"))


@pytest.mark.parametrize(
    ("spoil", "changes", "message"),
    [
        (Path.unlink, {}, "resume_from_checkpoint: expected game_state.json in the checkpoint, got none"),
        (lambda p: p.write_text("{}"), {}, "resume_from_checkpoint: expected an intact game_state.json, got"),
        (
            lambda p: p.write_bytes((p.parents[1] / "checkpoint-2" / p.name).read_bytes()),
            {},
            "resume_from_checkpoint: expected a game state of step 1, got one of step 2",
        ),
        (lambda p: None, {"abt_weight": 0.5}, "expected the options of the run, abt_weight 0.5, got 0.179"),
    ],
)
def test_a_spoiled_state_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        resumed(tmp_path, spoil, **changes)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            UnsupportedError,
            "expected checkpointing with use_reentrant=False, got reentrant",
        ),
        ({"torch_compile": True}, UnsupportedError, "args.torch_compile: expected False"),
    ],
)
def test_settings_that_cannot_be_combined_are_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tiny.trainer(tmp_path, tiny.adapted(), tiny.rows(8), options(), **settings).train()


def test_batches_without_targets_are_refused(tmp_path: Path) -> None:
    nothing = [row | {"labels": torch.full_like(row["labels"], -100)} for row in tiny.rows(8)]
    with pytest.raises(ArgumentError, match="labels: expected one target or more in the batch"):
        tiny.trainer(tmp_path, tiny.adapted(), nothing, options()).train()
    unlabelled = [{k: v for k, v in row.items() if k != "labels"} for row in tiny.rows(8)]
    with pytest.raises(ArgumentError, match="labels: expected labels in the batch"):
        tiny.trainer(tmp_path, tiny.adapted(), unlabelled, options()).train()


def test_options_must_be_options(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="game: expected GameOptions, got dict"):
        tiny.trainer(tmp_path, tiny.adapted(), tiny.rows(8), {"layers": [1]})
    assert issubclass(GameTrainer, GameMixin)
