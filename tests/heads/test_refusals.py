"""What is refused, each in one sentence that names the argument."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tiny_decoders import GROUPS, LAYERS, adapted, decoder, examples, logits, prompts

import diabat
from diabat.checks import ArgumentError
from diabat.heads import (
    Calibration,
    Dividends,
    GameLoss,
    GameOptions,
    HeadCoalitions,
    HeadInteractions,
    enable_gac,
    fit_surrogate,
    small_coalitions,
    surrogate,
)
from diabat.heads.games.decoder import check_layers
from diabat.heads.lora.couplings import (
    gradient_coupling,
    interaction,
    reachable_coupling,
    weight_coupling,
    written_coupling,
)
from diabat.heads.lora.losses import (
    counted_tokens,
    cross_head_barlow_twins,
    log_det_barrier,
    nash_weights,
    negative_entropy,
)
from diabat.heads.lora.outputs import HeadOutputs
from diabat.huggingface import convert
from diabat.samplers.capabilities import UnsupportedError

from . import game as tiny
from .games import questions


def game(**changes: Any) -> HeadCoalitions:
    given = {
        "model": decoder(),
        "samples": questions(1),
        **({} if "players" in changes else {"layer": 1}),
        **changes,
    }
    return HeadCoalitions(**given)


def without_switch(name: str, **sizes: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(vocab_size=40, **sizes)
    kind = {"T5": "T5ForConditionalGeneration", "Llama": "LlamaModel"}.get(name, f"{name}ForCausalLM")
    return getattr(transformers, kind)(config)


def flash() -> Any:
    model = decoder()
    model.config._attn_implementation_internal = "flash_attention_2"
    return model


class Twice(torch.nn.Module):
    """Two attentions where a block has one."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.one, self.two = attention, copy.deepcopy(attention)
        self.two.config = attention.config

    def forward(self, *given: Any, **named: Any) -> Any:
        self.one(*given, **named)
        return self.two(*given, **named)


def twice() -> Any:
    model = decoder()
    model.model.layers[1].self_attn = Twice(model.model.layers[1].self_attn)
    return model


def on(value: str, **sample: Any) -> HeadCoalitions:
    return game(samples=[{"input_ids": [5, 6]} | sample], value=value)


def corrupted(tokens: list[int]) -> HeadCoalitions:
    return game(ablation="corrupted", samples=[{"input_ids": [5, 6, 7], "corrupted": tokens}])


def int8() -> Any:
    class Int8Linear(torch.nn.Linear):
        pass

    model = decoder()
    model.model.layers[1].self_attn.o_proj.__class__ = Int8Linear
    return model


def infinite() -> Any:
    model = decoder()
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = torch.inf
    return model


def measured(given: Any, model: Any = None) -> Any:
    return HeadInteractions(model or decoder()).measure(given)


def searched(**changes: Any) -> Any:
    given: dict[str, Any] = {
        "value": lambda masks: masks.sum(-1).double(),
        "num_players": 4,
        "sampler": diabat.sampler("exact"),
    }
    return surrogate(**given | changes)


SMALL = {"hidden_size": 16, "num_hidden_layers": 1}
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "both": (lambda: game(layer=1, players=[[(0, 0)]]), "layer: expected None with players, which say it, got 1."),
    "layer": (lambda: game(layer=3), "layer: expected a layer with attention, 0 .. 2, got 3."),
    "twice": (lambda: game(layer=[1, 1]), "layer: expected different layers, got [1, 1]."),
    "no layer": (lambda: game(layer=[]), "layer: expected a list of one layer or more, got []."),
    "flag": (lambda: game(layer=True), "layer: expected a layer with attention, 0 .. 2, got True."),
    "divisor": (lambda: game(heads_per_player=3), "heads_per_player: expected a divisor of 8, the heads of layer 1, "),
    "size": (lambda: game(players=[[(0, 0)]], heads_per_player=1), "heads_per_player: expected None with players"),
    "overlap": (lambda: game(players=[[(0, 0), (0, 1)], [(2, 3), (0, 1)]]),
                "players: expected groups without a common head, got head 1 of layer 0 in players 0 and 1."),
    "empty": (lambda: game(players=[[(0, 0)], []]), "players: expected one or more groups, each of one or more heads."),
    "head": (lambda: game(players=[[(0, 8)]]), "players: expected heads 0 .. 7 of layer 0, got 8."),
    "depth": (lambda: game(players=[[(7, 0)]]), "players: expected a layer with attention"),
    "flat": (lambda: game(players=[0, 1]), "players: expected groups of (layer, head), got [0, 1]."),
    "ablation": (lambda: game(ablation="man"), "ablation: expected one of uniform, scaled, zero, mean, corrupted, got"),
    "batch": (lambda: game(batch_size=0), "batch_size: expected an integer >= 1, got 0."),
    "value": (lambda: game(value="logodds"), "value: expected one of log_odds, option_log_odds, "),
    "number": (lambda: game(value=3), "value: expected a name or a function, got int."),
    "infinite": (lambda: game(value=lambda z, sample: z[:, 0, 0] / 0).table(), "value: expected finite values, got "),
    "floats": (lambda: game().value(torch.ones(2, GROUPS)), "coalitions: expected a bool tensor, got torch.float32."),
    "shape": (lambda: game().value(torch.ones(2, 3).bool()), "coalitions: expected shape [M, 4], got [2, 3]."),
    "flash": (lambda: game(model=flash()), "model: expected attention that takes a mask ('eager', 'sdpa' or one of "),
    "twice in a block": (lambda: game(model=twice()),
                         "model: expected one attention module per layer, got two in layer 1."),
    "linear": (lambda: game(model=torch.nn.Linear(2, 2)), "model: expected a model of transformers, got Linear."),
    "headless": (lambda: game(model=without_switch("Llama", num_attention_heads=2, **SMALL)),
                 "model: expected a causal language model, got LlamaModel, which makes no logits."),
    "bloom": (lambda: game(model=without_switch("Bloom", hidden_size=16, n_layer=1, n_head=2)),
              "model: expected attention behind the AttentionInterface of transformers, found none in Bloom"),
    "mamba": (lambda: game(model=without_switch("Mamba", state_size=4, **SMALL)),
              "model: expected attention behind the AttentionInterface of transformers, found none in Mamba"),
    "encoder": (lambda: game(model=without_switch("T5", d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)),
                "model: expected a decoder, got T5ForConditionalGeneration, which has an encoder too."),
}  # fmt: skip


ONES, EYE, NAN = torch.ones, torch.eye, float("nan")
# Matched as regular expressions.
OTHERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: on("log_odds", choices=[[3, 4], [3, 5]], answer=0), "samples.0..choices: .* got .3. in choices 0 and 1"),
    (lambda: on("log_odds", choices=[3], answer=3), "samples.0..choices: expected 2 or more with an answer, got 1"),
    (lambda: on("log_odds"), "samples.0..choices: expected 2 or more with an answer, got 0"),
    (lambda: on("option_log_odds", choices=[3, [3]], answer=1), "samples.0..choices: expected different choices"),
    (lambda: on("option_log_likelihood"), "samples.0..choices: expected 1 or more"),
    (lambda: on("perplexity", input_ids=[4]), "samples.0.: expected 2 tokens or more for a perplexity"),
    (lambda: game(ablation="corrupted"), "samples.0..corrupted: expected a prompt for ablation=corrupted, got none"),
    (lambda: corrupted([5, 6]), "samples.0..corrupted: expected 3 tokens, as many as the input_ids, got 2"),
    (lambda: corrupted([5, 6, 99]), "samples.0..corrupted.input_ids: expected token ids in 0 .. 47, got"),
    (lambda: game(value=lambda z, sample: z).table(), r"value: expected a function that returns \[16\] values, got"),
    (lambda: game(heads_per_player=1, layer=None).table(), "max_size: expected 3, for example, for a game of 24 pl"),
    (lambda: game(heads_per_player=1, layer=None).dividends(), "max_size: expected 3, for example"),
    (lambda: Dividends.of(torch.zeros(3, 6), 3), r"values: expected shape \[samples, 8\] .*, got \[3, 6\]"),
    (lambda: Dividends.of(torch.zeros(8), 3), r"values: expected shape .* one row per sample, got \[8\]"),
    (lambda: Dividends.of(torch.zeros(2, 8).long(), 3), "values: expected a floating tensor, got torch.int64"),
    (lambda: Dividends.of(torch.zeros(2, 5), 4, 2), r"values: expected shape \[samples, 11\]"),
    (lambda: Dividends.of(torch.zeros(0, 11), 4, 2), "values: expected shape .* one row per sample"),
    (lambda: Dividends.of([1.0], 4, 2), "values: expected a floating tensor, got list"),
    (lambda: small_coalitions(64, 6), "max_size: expected at most 65536 coalitions, got 83278001"),
    (lambda: searched(value=3), "value: expected a function of masks, got int"),
    (lambda: searched(sampler="exact"), "sampler: expected a Sampler, as .* got 'exact'"),
    (lambda: searched(sampler=diabat.sampler("mean_field")), "sampler 'mean_field' computes moments only"),
    (lambda: fit_surrogate(ONES(3, 2), ONES(3)), r"coalitions: expected a bool tensor \[M, n\]"),
    (lambda: fit_surrogate(ONES(3, 2).bool(), ONES(3).long()), r"values: expected a floating tensor \[M\]"),
    (lambda: fit_surrogate(ONES(3, 2).bool(), ONES(4)), r"values: expected 3 values, two or more, got shape \[4\]"),
    (lambda: fit_surrogate(ONES(1, 2).bool(), ONES(1)), "values: expected 1 values, two or more"),
    (lambda: log_det_barrier(ONES(1, 1)), r"coupling: expected \[H, H\] with two or more heads"),
    (lambda: log_det_barrier(torch.tensor([[1.0, 2], [2, 1]])), "coupling: expected a positive semi-definite G"),
    (lambda: cross_head_barlow_twins(ONES(1, 3, 1, 2)), "outputs: expected .* two or more heads"),
    (lambda: cross_head_barlow_twins(ONES(1, 3, 2, 2), mask=torch.zeros(1, 3)), "mask: expected 2 or more tokens"),
    (lambda: cross_head_barlow_twins(ONES(1, 3, 2, 2), mask=ONES(3, 1)), r"mask: expected \[1, 3\], got \[3, 1\]"),
    (lambda: cross_head_barlow_twins(ONES(1, 3, 2, 2), ONES(3, 3)), r"weights: expected \[2, 2\], got \[3, 3\]"),
    (lambda: negative_entropy(ONES(2, 2)), r"logits: expected \[B, T, V\], got \[2, 2\]"),
    (lambda: weight_coupling(ONES(3, 4)), r"slices: expected a floating tensor \[H, hidden, d\]"),
    (lambda: gradient_coupling(ONES(2, 3, 4).long()), "gradients: expected a floating"),
    (lambda: gradient_coupling(ONES(0, 3, 4)), "gradients: expected one token or more"),
    (lambda: written_coupling(ONES(2, 3, 4), EYE(6)), r"moments: expected \[8, 8\], got \[6, 6\]"),
    (lambda: reachable_coupling(ONES(2, 3, 4), EYE(4)), r"moments: expected \[3, 3\]"),
    (lambda: interaction(EYE(2), EYE(3)), "rho: expected the shape of omega"),
    (lambda: nash_weights(torch.zeros(2, 2)), "gramian: expected a task with a gradient, got zero for all"),
    (lambda: nash_weights(torch.tensor([[1.0, NAN], [NAN, 1.0]])), "gramian: expected finite gradients of every task"),
    (lambda: nash_weights(ONES(2, 3)), r"gramian: expected \[K, K\] with K >= 1, got \[2, 3\]"),
    (lambda: HeadOutputs(decoder(), [3]), r"layers: expected a layer with attention, 0 \.\. 2, got 3"),
    (lambda: HeadOutputs(decoder(), [-1]), "layers: expected a layer with attention, .* got -1"),
    (lambda: HeadOutputs(decoder(), [0, 0]), "layers: expected different layers"),
    (lambda: HeadOutputs(decoder(), []), "layers: expected a list of one layer or more"),
    (lambda: HeadOutputs(decoder(), 1), "layers: expected a list of one layer or more, got 1"),
    (lambda: HeadOutputs(decoder(num_attention_heads=1, num_key_value_heads=1)), "model: expected two heads or more"),
    (lambda: HeadOutputs(adapted(decoder(), use_dora=True)), "model: expected plain LoRA .* DoraLinearVariant"),
    (lambda: HeadOutputs(int8()), "model: .* layer 1, got Int8Linear; load the model without quantization"),
    (lambda: HeadInteractions(torch.nn.Linear(2, 2)), "model: expected a model of transformers"),
    (lambda: measured([]), "batches: expected one batch or more"),
    (lambda: measured(3), "batches: expected a mapping or several, got int"),
    (lambda: measured({"input_ids": tiny.batch()["input_ids"]}), "batch: expected labels"),
    (lambda: measured(tiny.batch(), infinite()), "batch: expected finite gradients at the heads"),
    (lambda: counted_tokens([1]), "batch: expected a mapping of tensors"),
    *(
        (lambda change=change: counted_tokens(tiny.batch() | change), sentence)
        for change, sentence in [
            ({"labels": None}, "batch: expected labels, the targets"),
            ({"labels": torch.full((4, 12), -100)}, "batch: expected one target or more"),
            ({"labels": torch.zeros(4, 8).long()}, r"batch.labels: .* of input_ids, \[4, 12\], got \[4, 8\]"),
            ({"labels": [1]}, r"batch.labels: expected a tensor \[B, T\], got list"),
            ({"attention_mask": ONES(4, 1, 12, 12)}, "batch.attention_mask: expected a tensor"),
            ({"attention_mask": ONES(4, 8)}, "batch.attention_mask: expected the shape"),
            ({"attention_mask": torch.zeros(4, 12)}, "batch: expected one target or more"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_refused_in_one_sentence(name: str) -> None:
    make, sentence = WRONG[name]
    with pytest.raises(ValueError, match=f"^{sentence.split(':')[0]}") as caught:
        make()
    assert str(caught.value).startswith(sentence)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("value", "most"),
    [("log_odds", 64), ("perplexity", 64), ("option_log_odds", 62), ("option_log_likelihood", 63)],
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_what_the_model_cannot_read_is_refused(name: str, value: str, most: int) -> None:
    """The models have 64 positions.  The last token of a choice is no input."""
    answer = {"choices": [[3, 4], [7, 8, 9]], "answer": [3, 4]}

    def of(length: int) -> HeadCoalitions:
        sample = {"input_ids": [5] * length, **answer}
        return game(model=decoder(name), layer=2, value=value, samples=[sample])

    found = of(most)
    assert bool(found.value(torch.ones(1, found.num_players, dtype=torch.bool)).isfinite())
    with pytest.raises(
        ArgumentError, match=r"^samples\[0\]: expected at most 64 tokens .* can read .*, got 65\.$"
    ):
        of(most + 1)


def test_layers_with_gaps_are_listed() -> None:
    with pytest.raises(ArgumentError, match=r"^layer: expected a layer with attention, \[0, 2\], got 1\.$"):
        check_layers("layer", [1], {0: None, 2: None})


def test_what_a_model_cannot_do_is_told_apart() -> None:
    with pytest.raises(UnsupportedError, match="takes a mask"):
        game(model=flash())


def small(kind: str, **sizes: Any) -> Any:
    """A model of another kind."""
    config = transformers.AutoConfig.for_model(kind, vocab_size=20, **sizes)
    auto = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModel
    return auto.from_config(config)


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
MASK = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
Calls = list[tuple[Callable[[], Any], str]]


SALIENT = Calibration({0: [0, 1], 1: [], 2: [3]})


def calibrated(**arguments: Any) -> Any:
    model = decoder("llama")
    enable_gac(model, SALIENT)
    return logits(model, prompts(), **arguments)


def of_the_prompt(**arguments: Any) -> Any:
    model = decoder("llama")
    enable_gac(model, Calibration(SALIENT.salient, rows="prompt"))
    return model(**prompts(), **arguments)


def bool_mask() -> Any:
    model = decoder("llama")
    enable_gac(model, SALIENT)
    return model(prompts((0,))["input_ids"][:, :3], attention_mask=MASK)


CALIBRATED: Calls = [
    *(
        (lambda name=name: calibrated(**{name: torch.tensor(3.0)}), f"{name}: expected None .*'gac'")
        for name in ("s_aux", "sinks", "position_bias")
    ),
    (of_the_prompt, "rows: expected 'running' for logits of 14 positions, got .*logits_to_keep=1"),
    (lambda: of_the_prompt(labels=prompts()["input_ids"]), "rows: expected 'running' for logits"),
    (bool_mask, "attention_mask: expected a floating mask .*, got torch.bool"),
    (lambda: enable_gac(convert(decoder(), 3), SALIENT), "attn_implementation: expected 'boltzmann' for Boltz"),
    (lambda: enable_gac(torch.nn.Linear(2, 2), SALIENT), "model: expected a model of transformers"),
    (lambda: enable_gac(small("bert", **SIZES), SALIENT), "model: .* found none in BertModel"),
    (lambda: enable_gac(small("mamba", hidden_size=16, num_hidden_layers=1, state_size=4), SALIENT),
     "model: expected attention behind .* found none in MambaModel"),
    (lambda: enable_gac(small("t5", **T5), SALIENT), "model: expected a decoder, got T5"),
    (lambda: enable_gac(decoder(), Calibration({LAYERS: ()})),
     r"salient: expected layers among 0, 1, 2 of this model, got 3\."),
    (lambda: enable_gac(decoder(), Calibration({1: [8]})),
     r"salient: expected heads below 8 in layer 1 of this model, got 8\."),
    (lambda: enable_gac(decoder(), {}), "calibration: expected a Calibration, got dict"),
]  # fmt: skip


def game_loss(model: Any = None, **changes: Any) -> GameLoss:
    return GameLoss(tiny.adapted() if model is None else model, tiny.options(**changes), 5)


def merged() -> GameLoss:
    model = tiny.adapted()
    model.merge_adapter()
    return game_loss(model)


def stepped(model: Any = None, factor: float = 1.0, **changes: Any) -> Any:
    """One loss of a captured forward, whose cross-entropy is multiplied by a factor."""
    loss = game_loss(model, **changes)
    with loss.capture(tiny.batch()):
        ce = loss.model(**tiny.batch()).loss
    return loss.loss(factor * ce)


def without_gradients() -> None:
    loss = game_loss()
    with loss.capture(tiny.batch()), torch.no_grad():
        loss.model(**tiny.batch())


def wrong_mask() -> None:
    with game_loss().capture(tiny.batch() | {"attention_mask": torch.ones(4, 1, 12, 12)}):
        pass


# Adapters at the output projection of the first layer come behind its heads.
BEHIND = {"target_modules": ["o_proj"], "layers_to_transform": [0]}
LOSSES: Calls = [
    (lambda: game_loss(tiny.adapted(tiny.decoder(num_attention_heads=1, num_key_value_heads=1))),
     "model: expected two heads or more that interact, got one in layer 1"),
    (merged, "model: expected adapters beside the weights, got one merged"),
    (lambda: game_loss(tiny.adapted(use_dora=True)), "model: .*got Dora"),
    (lambda: game_loss(layers=[3]), "layers: expected a layer"),
    (lambda: game_loss(tiny.adapted(target_modules=["q_proj", "v_proj"])),
     "model: expected an adapter or trained weights at the output projection of layer 1, which the .* moves, got none"),
    (lambda: game_loss(tiny.decoder().requires_grad_(False)), "model: expected trained parameters"),
    (lambda: stepped(tiny.adapted(**BEHIND), layers=[0]),
     "model: expected trained parameters below the outputs of the heads of layer 0"),
    (lambda: game_loss().loss(torch.ones(())), r"cross_entropy: expected a forward with gradients inside c"),
    (without_gradients, r"layer: expected a forward with gradients inside capture\(\), got none"),
    (lambda: stepped(factor=float("nan")), "loss: expected finite gradients at the heads of layer 1"),
    (lambda: stepped(factor=0.0), "cross_entropy: expected a gradient that is not zero"),
    (wrong_mask, r"batch.attention_mask: expected a tensor \[B, T\], got \[4, 1, 12, 12\]"),
    (lambda: game_loss().load_state_dict(game_loss(ldb_weight=0.5).state_dict()),
     "game_state: expected the options of the run, ldb_weight 0.352, got 0.5"),
    (lambda: GameLoss(tiny.adapted(), {}, 5), "options: expected GameOptions, got dict"),
    (lambda: GameLoss(tiny.adapted(), tiny.options(), 0), "total_steps: expected an integer >= 1"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"layers": []}, r"layers: expected a list of layers, got \[\]"),
    ({"layers": [1, 1]}, r"layers: expected different integers >= 0, got \[1, 1\]"),
    ({"abt_layers": "19"}, "abt_layers: expected a list of layers, got '19'"),
    ({"losses": ["lbd"]}, "losses: expected one of .* Did you mean 'ldb'"),
    ({"losses": ["ldb", "ldb"]}, "losses: expected different losses"),
    ({"losses": "ldb"}, "losses: expected a list of losses, got 'ldb'"),
    ({"warmup": 0.9}, "warmup: expected at most cooldown = 0.879, got 0.9"),
])  # fmt: skip
def test_options_of_the_game(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        GameOptions(**changes)


UNLABELLED = [{k: v for k, v in row.items() if k != "labels"} for row in examples(8)]
IGNORED = [row | {"labels": torch.full_like(row["labels"], -100)} for row in examples(8)]
REENTRANT = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("arguments", "error", "sentence"), [
    ({"game": {"layers": [1]}}, ArgumentError, "game: expected GameOptions, got dict"),
    ({"examples": IGNORED}, ArgumentError, "labels: expected one target or more in the batch"),
    ({"examples": UNLABELLED}, ArgumentError, "labels: expected labels in the batch"),
    ({"torch_compile": True}, UnsupportedError, "args.torch_compile: expected False"),
    (REENTRANT, UnsupportedError, "model: expected checkpointing with use_reentrant=False, got reentrant"),
], ids=range(5))  # fmt: skip
def test_trainings_with_games(
    arguments: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Any
) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        tiny.trainer(tmp_path, tiny.adapted(), **{"game": tiny.options()} | arguments).train()


TABLE = OTHERS + CALIBRATED + LOSSES


@pytest.mark.parametrize(("call", "sentence"), TABLE, ids=range(len(TABLE)))
def test_what_is_refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        call()
