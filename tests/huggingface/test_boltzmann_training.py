"""Training of couplings in decoders: gradients, checkpointing, Trainer, adapters, groups of parameters."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

import transformers
from tiny_decoders import VOCABULARY, decoder, logits, prompts

from diabat.checks import ArgumentError
from diabat.huggingface import convert, parameter_groups
from diabat.huggingface.boltzmann import BoltzmannHeads, BoltzmannOptions
from diabat.huggingface.boltzmann.windows import find_windows
from diabat.ising import pack_couplings

from .boltzmann_decoders import ARCHITECTURES, COUPLED, coupled, couplings, naive_row, randomised

FIRST = "model.layers.0.self_attn.boltzmann"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def problem(weights: str, far: str) -> tuple[BoltzmannHeads, Any, Tensor, Tensor]:
    """Heads of float64, windows of a causal mask with padding, scores without bias, and what is visible."""
    visible = torch.ones(7, 7, dtype=torch.bool).tril() & (torch.arange(7) != 2)
    heads = BoltzmannHeads(2, BoltzmannOptions(COUPLED, weights=weights, far=far), dtype=torch.float64)
    windows = find_windows(visible[None, None], COUPLED, torch.float64, far=far == "independent")
    generator = torch.Generator().manual_seed(1)
    return heads, windows, torch.randn(1, 2, 7, 7, generator=generator, dtype=torch.float64), visible


every_form = pytest.mark.parametrize(
    ("weights", "far"), [("odds", "independent"), ("odds", "none"), ("probability", "independent")]
)


@every_form
def test_gradients_by_finite_differences(weights: str, far: str) -> None:
    heads, windows, scores, _ = problem(weights, far)
    [own] = couplings(randomised(heads)).values()
    pairs = own.detach().clone().requires_grad_()

    def weights_of(s: Tensor, J: Tensor) -> Tensor:
        return torch.func.functional_call(heads, {"coupling_pairs": J}, (s + windows.bias, windows))

    assert torch.autograd.gradcheck(weights_of, (scores.requires_grad_(), pairs))


@every_form
def test_gradients_are_those_of_enumeration(weights: str, far: str) -> None:
    heads, windows, scores, visible = problem(weights, far)
    randomised(heads)
    scores.requires_grad_()
    cotangent = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    [own] = couplings(heads).values()
    found = torch.autograd.grad(heads(scores + windows.bias, windows), (scores, own), cotangent)
    J = own.detach().clone().requires_grad_()
    matrices = pack_couplings(J, COUPLED)
    rows = [
        [naive_row(scores[0, h, i], matrices[h], visible[i], COUPLED, weights, far) for i in range(7)]
        for h in range(2)
    ]
    naive = torch.stack([torch.stack(row) for row in rows])[None]
    expected = torch.autograd.grad(naive, (scores, J), cotangent)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 1e-11


def test_gradient_at_zero_couplings_is_known() -> None:
    """d log-odds_j / dJ_jk = 2 tanh(h_k) at J = 0, and 0 for pairs without j."""
    heads, windows, scores, _ = problem("odds", "none")
    [own] = couplings(heads).values()
    row = 6  # sees the keys 3 .. 6 in its window
    weights = heads(scores + windows.bias, windows)[0, 0, row]
    h = scores[0, 0, row, 3:].log_softmax(0) / 2
    grad = torch.autograd.grad((weights[6] / weights[4]).log(), own)[0][0]
    m, pairs = torch.tanh(h), [(j, k) for j in range(4) for k in range(j + 1, 4)]
    expected = torch.zeros(6, dtype=torch.float64)
    for index, pair in enumerate(pairs):
        for key, sign in ((3, 1), (1, -1)):
            if key in pair:
                expected[index] += 2 * sign * m[sum(pair) - key]
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-12)


def test_gradients_of_the_loss_by_finite_differences() -> None:
    """In GPT-2; the norms of the others compute in float32 also in a model of float64."""
    model, batch = coupled("gpt2").double(), prompts()
    # Without predictions from padding: as in eager attention, rows without a visible key have gradients of scores that
    # a mask absorbs.
    real = batch["attention_mask"][:, :-1].bool()

    def loss() -> Tensor:
        predicted = model(**batch).logits[:, :-1]  # the loss of transformers is in float32
        return torch.nn.functional.cross_entropy(predicted[real], batch["input_ids"][:, 1:][real])

    found = torch.autograd.grad(loss(), list(couplings(model).values()))
    for J, grad in zip(couplings(model).values(), found, strict=True):
        direction = torch.randn(J.shape, generator=torch.Generator().manual_seed(4), dtype=J.dtype)
        losses = []
        with torch.no_grad():
            for sign in (1, -2, 1):
                J.add_(direction, alpha=sign * 1e-5)
                losses.append(loss())
        slope = (losses[0] - losses[1]) / 2e-5
        torch.testing.assert_close(slope, (grad * direction).sum(), rtol=1e-5, atol=1e-9)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_checkpointing_gives_the_same_gradients(name: str) -> None:
    changes = {"attn_pdrop": 0.1} if name == "gpt2" else {"attention_dropout": 0.1}
    model, batch = coupled(name, changes=changes).train(), prompts()
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(0)
        model.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        found.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() == dict(model.named_parameters()).keys()
    for key, grad in found[0].items():
        # Products of torch may round otherwise where the memory lies otherwise.
        torch.testing.assert_close(grad, found[1][key], rtol=0, atol=1e-5 * float(grad.abs().max()))


def examples(count: int = 48) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (count, 12), generator=generator)
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]


def trainer(folder: Path, model: Any, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 0,
        "dataloader_pin_memory": False,
        "lr_scheduler_type": "linear",
        "learning_rate": 1e-3,
    }
    args = transformers.TrainingArguments(str(folder), **settings | changes)
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-3, 1e-2, 0.1))
    return transformers.Trainer(model, args, train_dataset=examples(), optimizers=(optimizer, None))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
def test_a_resumed_training_equals_one_without_a_break(tmp_path: Path) -> None:
    whole = convert(decoder("llama", attention_dropout=0.1), COUPLED)
    trainer(tmp_path / "whole", whole).train()
    first = convert(decoder("llama", attention_dropout=0.1), COUPLED)
    broken = trainer(tmp_path / "parts", first, save_strategy="steps", save_steps=3)
    broken.add_callback(StopAt(3))
    broken.train()
    again = convert(decoder("llama", seed=9, attention_dropout=0.1), COUPLED)
    trainer(tmp_path / "parts", again).train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))
    expected = whole.state_dict()
    assert couplings(whole)[FIRST].abs().max() > 1e-2  # it has a rate of its own
    for key, value in again.state_dict().items():
        assert torch.equal(value, expected[key]), key


class StopAt(transformers.TrainerCallback):
    """Ends a training after some steps, as an interruption does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def test_groups_hold_every_trained_parameter_once() -> None:
    model = coupled()
    groups = {group["name"]: group for group in parameter_groups(model, 1e-3, 1e-2, 0.1)}
    assert list(groups) == ["decayed", "other", "couplings"]
    own = {id(J) for J in couplings(model).values()}
    assert {id(p) for p in groups["couplings"]["params"]} == own
    found = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
    assert all(p.ndim == 2 for p in groups["decayed"]["params"])
    assert [(g["lr"], g["weight_decay"]) for g in groups.values()] == [(1e-3, 0.1), (1e-3, 0.0), (1e-2, 0.0)]
    for name, value in (("lr", 0), ("coupling_lr", float("nan")), ("weight_decay", -1)):
        with pytest.raises(ArgumentError, match=name):
            parameter_groups(model, **{"lr": 1e-3, "coupling_lr": 1e-2} | {name: value})
    with pytest.raises(ArgumentError, match="model: expected a model with couplings"):
        parameter_groups(decoder("llama"), 1e-3, 1e-2)


def adapted(model: Any, **options: Any) -> Any:
    peft = pytest.importorskip("peft", reason="the extra 'hf' is not installed")
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(
            model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, task_type="CAUSAL_LM", **options)
        )


def test_adapters_that_freeze_the_couplings_warn() -> None:
    model = adapted(convert(decoder("llama"), COUPLED))
    sentence = r"adapters of peft leave the couplings frozen and do not save them; add modules_to_save=\['boltzmann'\]"
    with pytest.warns(UserWarning, match=sentence):
        model.train()
    with pytest.raises(
        ArgumentError, match=r"frozen ones; adapters of peft need modules_to_save=\['boltzmann'\]"
    ):
        parameter_groups(model, 1e-3, 1e-2)
    adapted(convert(decoder("llama"), COUPLED), modules_to_save=["boltzmann"]).train()
    with pytest.raises(ValueError, match="without adapters, got PeftModelForCausalLM; convert it before"):
        convert(adapted(decoder("llama")), COUPLED)


def test_adapters_with_couplings_make_the_round_trip(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra 'hf' is not installed")
    base = coupled()
    base.save_pretrained(tmp_path / "base")
    model, batch = adapted(base, modules_to_save=["boltzmann"]).train(), prompts()
    before = logits(model.eval(), batch)
    optimizer = torch.optim.AdamW(parameter_groups(model.train(), 1e-2, 1e-1))
    for _ in range(3):
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = logits(model.eval(), batch)
    assert (trained - before).abs().max() > 0.01
    model.save_pretrained(tmp_path / "adapter")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(again, tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded, batch), trained)
    with loaded.disable_adapter():
        assert torch.equal(logits(loaded, batch), before)
    merged = loaded.merge_and_unload()
    assert (logits(merged, batch) - trained).abs().max() < 3e-5
    assert (couplings(merged)[FIRST] - couplings(coupled())[FIRST]).abs().max() > 0.05
