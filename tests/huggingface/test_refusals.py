"""What the package refuses, each with one sentence that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_decoders
import torch
import transformers
from tiny_decoders import LAYERS, decoder, logits, prompts

import diabat
from diabat.attention.heads import Calibration
from diabat.checks import ArgumentError
from diabat.huggingface import GameLoss, GameOptions, convert, enable_gac, parameter_groups
from diabat.huggingface.boltzmann.layer import boltzmann_attention
from diabat.samplers.capabilities import UnsupportedError

from . import game as tiny
from .methods import SETTING, coupled

Call = Callable[[], Any]


def small(kind: str, **sizes: Any) -> Any:
    """A model of another kind."""
    config = transformers.AutoConfig.for_model(kind, vocab_size=20, **sizes)
    auto = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModel
    return auto.from_config(config)


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
MASK = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()


def attended(mask: Any, **arguments: Any) -> Any:
    q, k = torch.randn(1, 8, 3, 4), torch.randn(1, 4, 3, 4)
    return boltzmann_attention(coupled().model.layers[0].self_attn, q, k, k, mask, **arguments)


def quantised() -> Any:
    model = decoder("llama")
    method = transformers.utils.quantization_config.QuantizationMethod.GPTQ
    model.hf_quantizer = SimpleNamespace(quantization_config=SimpleNamespace(quant_method=method))
    return model


def unconverted() -> Any:
    model = decoder("llama")
    model.set_attn_implementation("boltzmann")
    return logits(model, prompts())


def calibrated(**arguments: Any) -> Any:
    model = decoder("llama")
    enable_gac(model, SETTING)
    return logits(model, prompts(), **arguments)


def of_the_prompt(**arguments: Any) -> Any:
    model = decoder("llama")
    enable_gac(model, Calibration(SETTING.salient, rows="prompt"))
    return model(**prompts(), **arguments)


def bool_mask() -> Any:
    model = decoder("llama")
    enable_gac(model, SETTING)
    return model(prompts((0,))["input_ids"][:, :3], attention_mask=MASK)


METHODS: list[tuple[Call, str]] = [
    (lambda: convert(decoder("gpt_oss"), 3), "model: expected a decoder .* of one of gemma, .*got GptOss"),
    (lambda: convert(decoder("llama").model.layers[0], 3), "model: .* got LlamaDecoderLayer"),
    (lambda: convert("llama", 3), "model: expected a decoder .*got str"),
    (lambda: convert(quantised(), 3), "model: expected weights that are not quantised, got those of 'gptq'"),
    (lambda: convert(decoder("gpt2", add_cross_attention=True), 3),
     "model: expected a decoder without cross-attention"),
    (lambda: convert(coupled(), 3), "model: expected a model without couplings, got BoltzmannLlama"),
    (lambda: convert(tiny_decoders.adapted(decoder("llama")), 3),
     "model: expected a model without adapters, got PeftModelForCausalLM; convert it before"),
    (unconverted, "attn_implementation: expected a model with couplings for 'boltzmann', .*convert"),
    (lambda: attended(None), r"attention_mask: expected a mask \[B, 1, Q, K\].*got None"),
    *(
        (lambda name=name: attended(MASK, **{name: 2.0}), f"{name}: expected None with .*'boltzmann'")
        for name in ("s_aux", "position_bias")
    ),
    (lambda: parameter_groups(coupled(), 0, 1e-2), "lr: expected a positive"),
    (lambda: parameter_groups(coupled(), 1e-3, float("nan")), "coupling_lr: expected a positive"),
    (lambda: parameter_groups(coupled(), 1e-3, 1e-2, -1), "weight_decay: expected a number in"),
    (lambda: parameter_groups(decoder(), 1e-3, 1e-2), "model: expected a model with couplings"),
    (lambda: parameter_groups(tiny_decoders.adapted(coupled()), 1e-3, 1e-2),
     r"model: .* frozen ones; adapters of peft need modules_to_save=\['boltzmann'\]"),
    *(
        (lambda name=name: calibrated(**{name: torch.tensor(3.0)}), f"{name}: expected None .*'gac'")
        for name in ("s_aux", "sinks", "position_bias")
    ),
    (of_the_prompt, "rows: expected 'running' for logits of 14 positions, got .*logits_to_keep=1"),
    (lambda: of_the_prompt(labels=prompts()["input_ids"]), "rows: expected 'running' for logits"),
    (bool_mask, "attention_mask: expected a floating mask .*, got torch.bool"),
    (lambda: enable_gac(coupled(), SETTING), "attn_implementation: expected 'boltzmann' for Boltz"),
    (lambda: enable_gac(torch.nn.Linear(2, 2), SETTING), "model: expected a model of transformers"),
    (lambda: enable_gac(small("bert", **SIZES), SETTING), "model: .* found none in BertModel"),
    (lambda: enable_gac(small("mamba", hidden_size=16, num_hidden_layers=1, state_size=4), SETTING),
     "model: expected attention behind .* found none in MambaModel"),
    (lambda: enable_gac(small("t5", **T5), SETTING), "model: expected a decoder, got T5"),
    (lambda: enable_gac(decoder(), Calibration({LAYERS: ()})),
     r"salient: expected layers among 0, 1, 2 of this model, got 3\."),
    (lambda: enable_gac(decoder(), Calibration({1: [8]})),
     r"salient: expected heads below 8 in layer 1 of this model, got 8\."),
    (lambda: enable_gac(decoder(), {}), "calibration: expected a Calibration, got dict"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window": 40}, "window: sampler 'exact' accepts at most 38 spins, got 40"),
        (
            {"window": 10**9, "sampler": "mean_field"},
            "window: .*couplings of window = 1000000000 in 3 layers",
        ),
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"window": 2.0}, "window: expected an integer >= 1, got 2.0"),
        ({"sampler": "exakt"}, "sampler: expected one of .*Did you mean 'exact'"),
        ({"sampler": 3}, "sampler: expected a diabat Sampler or its name, got int"),
        ({"weights": "odd"}, "weights: expected one of probability, odds, got 'odd'"),
        ({"far": "near"}, "far: expected one of none, independent, got 'near'"),
        ({"gradient": "adjoint"}, "gradient: sampler 'exact' supports"),
        ({"num_reads": 5}, "num_reads: gradient 'exact' differentiates"),
        ({"bandwidth": 0}, "bandwidth: expected an integer >= 1 or None, got 0"),
        ({"window": 4, "rank": 2},
         r"rank: expected None unless neighbouring keys are coupled \(window=None\), got 2"),
        ({"window": None, "far": "none"}, "far: expected 'independent' with window=None"),
        ({"window": None, "sampler": "exact"}, "sampler: expected one that takes edges without a window"),
    ],
)  # fmt: skip
def test_a_refused_option_leaves_the_model_as_it_is(options: dict[str, Any], sentence: str) -> None:
    model = decoder("llama")
    names = [name for name, _ in model.named_parameters()]
    with pytest.raises(ValueError, match=f"^{sentence}"):
        convert(model, **options)
    assert type(model) is transformers.LlamaForCausalLM
    assert [name for name, _ in model.named_parameters()] == names
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["dqa", "tempering"])
def test_backends_that_miss_softmax_warn(name: str) -> None:
    with pytest.warns(UserWarning, match=rf"'{name}' does not return sigmoid\(2h\) exactly at J = 0"):
        model = convert(decoder("llama"), 3, diabat.sampler(name))
    found = logits(model, prompts())
    assert found.isfinite().all()
    assert 1e-4 < (found - logits(decoder("llama"), prompts())).abs().max() < 10


def game(model: Any = None, **changes: Any) -> GameLoss:
    return GameLoss(tiny.adapted() if model is None else model, tiny.options(**changes), 5)


def merged() -> GameLoss:
    model = tiny.adapted()
    model.merge_adapter()
    return game(model)


def stepped(model: Any = None, factor: float = 1.0, **changes: Any) -> Any:
    """One loss of a captured forward, whose cross-entropy is multiplied by a factor."""
    loss = game(model, **changes)
    with loss.capture(tiny.batch()):
        ce = loss.model(**tiny.batch()).loss
    return loss.loss(factor * ce)


def without_gradients() -> None:
    loss = game()
    with loss.capture(tiny.batch()), torch.no_grad():
        loss.model(**tiny.batch())


def wrong_mask() -> None:
    with game().capture(tiny.batch() | {"attention_mask": torch.ones(4, 1, 12, 12)}):
        pass


# Adapters at the output projection of the first layer come behind its heads.
BEHIND = {"target_modules": ["o_proj"], "layers_to_transform": [0]}
LOSSES: list[tuple[Call, str]] = [
    (lambda: game(tiny.adapted(tiny.decoder(num_attention_heads=1, num_key_value_heads=1))),
     "model: expected two heads or more that interact, got one in layer 1"),
    (merged, "model: expected adapters beside the weights, got one merged"),
    (lambda: game(tiny.adapted(use_dora=True)), "model: .*got Dora"),
    (lambda: game(layers=[3]), "layers: expected a layer"),
    (lambda: game(tiny.adapted(target_modules=["q_proj", "v_proj"])),
     "model: expected an adapter at the output projection of layer 1, which the log-det barrier moves, got none"),
    (lambda: game(tiny.decoder().requires_grad_(False)), "model: expected trained parameters"),
    (lambda: stepped(tiny.adapted(**BEHIND), layers=[0]),
     "model: expected trained parameters below the outputs of the heads of layer 0"),
    (lambda: game().loss(torch.ones(())), r"cross_entropy: expected a forward with gradients inside c"),
    (without_gradients, r"layer: expected a forward with gradients inside capture\(\), got none"),
    (lambda: stepped(factor=float("nan")), "loss: expected finite gradients at the heads of layer 1"),
    (lambda: stepped(factor=0.0), "cross_entropy: expected a gradient that is not zero"),
    (wrong_mask, r"attention_mask: expected a tensor \[B, T\], got \[4, 1, 12, 12\]"),
    (lambda: game().load_state_dict(game(ldb_weight=0.5).state_dict()),
     "game_state: expected the options of the run, ldb_weight 0.352, got 0.5"),
    (lambda: GameLoss(tiny.adapted(), {}, 5), "options: expected GameOptions, got dict"),
    (lambda: GameLoss(tiny.adapted(), tiny.options(), 0), "total_steps: expected an integer >= 1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), METHODS + LOSSES, ids=range(len(METHODS + LOSSES)))
def test_attention_and_losses(call: Call, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        call()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layers": []}, r"layers: expected a list of layers, got \[\]"),
        ({"layers": [1, 1]}, r"layers: expected different integers >= 0, got \[1, 1\]"),
        ({"abt_layers": "19"}, "abt_layers: expected a list of layers, got '19'"),
        ({"losses": ["lbd"]}, "losses: expected one of .* Did you mean 'ldb'"),
        ({"losses": ["ldb", "ldb"]}, "losses: expected different losses"),
        ({"losses": "ldb"}, "losses: expected a list of losses, got 'ldb'"),
        ({"ldb_weight": -1.0}, r"ldb_weight: expected a number in \[0, inf\), got -1.0"),
        ({"abt_weight": float("inf")}, r"abt_weight: expected a number in \[0, inf\), got inf"),
        ({"threshold": float("nan")}, "threshold: expected a number in .*, got nan"),
        ({"floor": 1.5}, r"floor: expected a number in \[0, 1\], got 1.5"),
        ({"warmup": 0.9}, "warmup: expected at most cooldown = 0.879, got 0.9"),
        ({"ema_decay": 0.0}, r"ema_decay: expected a number in \(0, 1\], got 0.0"),
        ({"ema_decay": 1.1}, r"ema_decay: expected a number in \(0, 1\], got 1.1"),
        ({"epsilon": 0.0}, r"epsilon: expected a number in \(0, inf\), got 0.0"),
        ({"nash_every": 0}, "nash_every: expected an integer >= 1, got 0"),
        ({"combination": "mean"}, "combination: expected one of nash, sum, got 'mean'"),
        ({"rho": "last"}, "rho: expected one of fresh, last_step, got 'last'"),
        ({"multipliers": "none"}, "multipliers: expected one of after, before"),
        ({"target": "one"}, "target: expected one of identity, zero"),
        ({"weighting": "flat"}, "weighting: expected one of adaptive, inverse, uniform"),
    ],
)
def test_options_of_the_game(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        GameOptions(**changes)


UNLABELLED = [{k: v for k, v in row.items() if k != "labels"} for row in tiny_decoders.examples(8)]
IGNORED = [row | {"labels": torch.full_like(row["labels"], -100)} for row in tiny_decoders.examples(8)]
REENTRANT = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"game": {"layers": [1]}}, ArgumentError, "game: expected GameOptions, got dict"),
        ({"examples": IGNORED}, ArgumentError, "labels: expected one target or more in the batch"),
        ({"examples": UNLABELLED}, ArgumentError, "labels: expected labels in the batch"),
        ({"torch_compile": True}, UnsupportedError, "args.torch_compile: expected False"),
        (REENTRANT, UnsupportedError,
         "model: expected checkpointing with use_reentrant=False, got reentrant"),
    ],
    ids=range(5),
)  # fmt: skip
def test_trainings(arguments: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Any) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        tiny.trainer(tmp_path, tiny.adapted(), **{"game": tiny.options()} | arguments).train()
