"""Decoders of transformers: couplings, calibrated attention, coalitions and interaction of heads, GAME-LoRA."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import Build, Call, Case, Peer, Work

VOCABULARY = 512


def cases() -> list[Case]:
    """All of them."""
    return [*coupled(), *called(), *calibrated(), *coalitions(), *interaction(), *fine_tuning(), *qwen()]


def llama(layers: int, width: int, heads: int = 8, groups: int = 4, attention: str = "sdpa") -> Any:
    """A Llama of random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=11 * width // 4, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, max_position_embeddings=4096,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(attention)
    return model


def tokens(rows: int, length: int) -> Tensor:
    """Random tokens."""
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def decoding(model: Any, ids: Tensor) -> Call:
    """One token after another behind prompts."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model.eval()(input_ids=ids, past_key_values=cache, logits_to_keep=1)
    return torch.no_grad()(lambda: model(input_ids=ids[:, -1:], past_key_values=cache))


def converted(window: int, **options: Any) -> Any:
    """A Llama of 4 layers with random couplings."""
    from diabat.huggingface import convert

    model = convert(llama(4, 256), window, **options)
    for name, parameter in model.named_parameters():
        if name.endswith("couplings.pairs"):
            nn.init.normal_(parameter, std=0.2)
    return model


def coupled() -> list[Case]:
    """Couplings among the last T keys in a Llama of 4 layers: a training step and a token."""

    def step(model: Any) -> Call:
        from diabat.huggingface import parameter_groups

        mine = "boltzmann" in model.config.model_type
        groups: Any = parameter_groups(model, 3e-4, 3e-3) if mine else model.parameters()
        optimizer = torch.optim.AdamW(groups, lr=3e-4)
        ids = tokens(2, 256)

        def run() -> None:
            model.train()(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    def token(model: Any) -> Call:
        return decoding(model, tokens(1, 128))

    def windows(window: int, way: Callable[[Any], Call], attention: str = "", **options: Any) -> Call:
        return way(llama(4, 256, attention=attention) if attention else converted(window, **options))

    kinds: dict[str, dict[str, Any]] = {
        "odds": {}, "odds, far none": {"far": "none"}, "probability": {"readout": "probability"},
    }  # fmt: skip
    found = []
    for what, way in (("training step", step), ("decoded token", token)):
        compared = {
            "sdpa": Peer(partial(windows, way=way, attention="sdpa"), {12: 3.0} if way is step else None),
            "eager": Peer(partial(windows, way=way, attention="eager")),
        }
        for name, options in kinds.items():
            build: Build = partial(windows, way=way, **options)
            found.append(Case(f"Llama/{what}, {name}", build, (8, 12, 16), "T", peers=compared))
    return found


def called() -> list[Case]:
    """What transformers calls in a layer, forward and backward: windows of 8 in 4 x 96 tokens."""

    def build(far: str, attention: str = "boltzmann") -> Call:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        model = converted(8, far=far) if attention == "boltzmann" else llama(4, 256)
        q, k, v = (torch.randn(4, heads, 96, 32, requires_grad=True) for heads in (8, 4, 4))
        mask = torch.ones(1, 1, 96, 96, dtype=torch.bool).tril() if attention == "boltzmann" else None
        call = partial(ALL_ATTENTION_FUNCTIONS[attention], model.model.layers[0].self_attn, q, k, v, mask)
        return lambda: call()[0].sum().backward()

    sdpa = {"sdpa": Peer(partial(build, attention="sdpa"))}
    return [Case("Llama/attention alone", build, ("independent", "none"), "far", peers=sdpa, target=3e-3)]


def calibrated() -> list[Case]:
    """Calibrated attention in a Llama of 4 layers of width 512: prompts in one pass, and a token behind one."""
    every = {layer: () for layer in range(4)}
    settings: dict[str, dict[str, Any]] = {
        "off again": {"salient": every},
        "one layer": {"salient": {2: range(4)}},
        "all heads, running": {"salient": every},
        "all heads, prompt": {"salient": every, "rows": "prompt"},
        "all heads, uniform": {"salient": every, "redistribution": "uniform"},
    }

    def build(size: str, setting: str = "", attention: str = "sdpa") -> Call:
        model = llama(4, 512, 16, 8, attention).eval()
        if setting:
            from diabat.heads import Calibration, disable_gac, enable_gac

            enable_gac(model, Calibration(**settings[setting]))
            if setting == "off again":
                disable_gac(model)
        rows, length = (int(word) for word in size.split(" ")[-3::2])
        if size.startswith("token"):
            return decoding(model, tokens(rows, length))
        return torch.no_grad()(partial(model, tokens(rows, length), logits_to_keep=1, use_cache=True))

    eager = Peer(partial(build, attention="eager"))
    sizes = ("prompt 4 x 128", "prompt 1 x 512", "token behind 1 x 512")
    return [
        Case(
            f"calibration/{name}", partial(build, setting=name), sizes, "",
            peers={"sdpa": Peer(build, 1.05 if name == "off again" else None), "eager": eager},
        )
        for name in settings
    ]  # fmt: skip


def coalitions() -> list[Case]:
    """Tables of all coalitions of the 8 players of every layer, against whole passes with hooks that drop heads."""
    layers, length, players = 6, 32, 8
    masks = (torch.arange(2**players)[:, None] >> torch.arange(players) & 1).bool()

    def table(model: Any, layer: int, batch: int) -> Tensor:
        from diabat.heads import HeadCoalitions

        def value(logits: Tensor, sample: Any) -> Tensor:
            return logits[:, -1, 0]

        asked = [{"input_ids": torch.arange(length)}]
        return HeadCoalitions(model, asked, layer=layer, value=value, batch_size=batch).table()

    def by_layer(of: Callable[[Any, int, int], Tensor], width: int, batch: int = 16) -> Work:
        model = llama(layers, width, players, players)
        return Work(lambda: [of(model, layer, batch) for layer in range(layers)], layers * len(masks))

    @torch.no_grad()
    def passes(model: Any, layer: int, batch: int) -> Tensor:
        """Logits of the last token with the outputs of absent heads zeroed, which is less work than their means."""
        output, values = model.model.layers[layer].self_attn.o_proj, []
        for some in masks.split(batch):
            kept = some.repeat_interleave(output.in_features // players, 1)[:, None]
            handle = output.register_forward_pre_hook(lambda _, args, kept=kept: (args[0] * kept,))
            ids = torch.arange(length).expand(len(some), -1)
            values.append(model(ids, logits_to_keep=1).logits[:, -1, 0])
            handle.remove()
        return torch.cat(values)

    def alone(width: int) -> Work:
        """One coalition at a time, in one of the layers."""
        model = llama(layers, width, players, players)
        return Work(partial(passes, model, 0, 1), len(masks))

    compared = {"whole passes": Peer(partial(by_layer, passes), 0.8), "one at a time": Peer(alone, 0.25)}

    def memory(batch: int) -> Work:
        return Work(partial(table, llama(2, 128, players, players), 1, batch), len(masks))

    return [
        Case("heads/coalitions", partial(by_layer, table), (64, 128), "width", "coalition", compared),
        Case("heads/memory of a batch", memory, (1, 4, 16, 64, 256), "batch", "coalition", fresh=True),
    ]


def interaction() -> list[Case]:
    """Couplings of the heads of all layers, against a forward and backward pass."""

    def batch() -> dict[str, Tensor]:
        return {"input_ids": tokens(16, 128), "labels": tokens(16, 128)}

    def measured(_: Any) -> Call:
        from diabat.heads import HeadInteractions

        return partial(HeadInteractions(llama(4, 128, 8, 2)).measure, batch())

    def step(_: Any) -> Call:
        model, given = llama(4, 128, 8, 2), batch()
        return lambda: model(**given).loss.backward()

    compared = {"forward and backward": Peer(step, 1.1)}
    return [Case("heads/interaction", measured, peers=compared)]


ARMS: dict[str, dict[str, Any]] = {
    "sum, rho of the last step": {"combination": "sum", "rho": "last_step"},
    "sum, fresh rho": {"combination": "sum"},
    "Nash every 10, rho of the last step": {"nash_every": 10, "rho": "last_step"},
    "Nash every 10, fresh rho": {"nash_every": 10},
    "Nash every step": {},
}


def adapted(model: Any) -> Any:
    """A decoder with the adapters of the paper."""
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=targets)
    return get_peft_model(model, config).train()


def trained(model: Any, ids: Tensor, layer: int, options: Mapping[str, Any] | None, steps: int = 10) -> Call:
    """Steps of fine-tuning with the losses of GAME-LoRA; of plain LoRA without options."""
    from diabat.heads import GameLoss, GameOptions

    warnings.simplefilter("ignore")
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    game = None
    if options is not None:
        game = GameLoss(model, GameOptions(layers=[layer], warmup=0.0, cooldown=1.0, **options), 1_000_000)

    def step() -> None:
        if game is None:
            model(**batch).loss.backward()
        else:
            with game.capture(batch):
                cross_entropy = model(**batch).loss
            game.loss(cross_entropy).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if game is not None:
            game.step()

    def run() -> None:
        for _ in range(steps):
            step()

    return run


def fine_tuning() -> list[Case]:
    """Ten steps of 2 x 128 tokens with the losses on the fifth of six layers, against plain LoRA."""
    targets = {
        "sum, rho of the last step": 1.05,
        "Nash every 10, rho of the last step": 1.1,
        "Nash every step": 1.4,
    }

    def build(_: Any, options: Mapping[str, Any] | None = None) -> Work:
        return Work(trained(adapted(llama(6, 256, 8, 2)), tokens(2, 128), 4, options), 10)

    found = []
    for name, options in ARMS.items():
        plain = {"plain LoRA": Peer(build, targets.get(name))}
        found.append(Case(f"GAME-LoRA/{name}", partial(build, options=options), unit="step", peers=plain))
    return found


def qwen() -> list[Case]:
    """A step of one sequence of 256 tokens on the shape of Qwen2.5-0.5B in float32, losses on layer 19: memory."""

    def build(arm: str) -> Call:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=1024,
        )  # fmt: skip
        options = {"plain LoRA": None, "sum": ARMS["sum, rho of the last step"], "Nash every step": {}}[arm]
        return trained(adapted(Qwen2ForCausalLM(config)), tokens(1, 256), 19, options, steps=1)

    arms = ("plain LoRA", "sum", "Nash every step")
    return [Case("GAME-LoRA/Qwen2.5-0.5B", build, arms, "", "step", fresh=True)]
