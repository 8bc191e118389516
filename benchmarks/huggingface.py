"""Decoders of transformers: couplings, calibrated attention, GAME-LoRA."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import Build, Call, Case, Peer, Work
from benchmarks.problems import trained

VOCABULARY = 512


def cases() -> list[Case]:
    """All of them."""
    return [*coupled(), *calibrated(), *fine_tuning()]


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


def coupled() -> list[Case]:
    """Random couplings among the last T keys in a Llama of 4 layers: a training step and a decoded token."""

    def model(window: int, attention: str = "", **options: Any) -> Any:
        from diabat.huggingface import convert

        if attention:
            return llama(4, 256, attention=attention)
        converted = convert(llama(4, 256), window, **options)
        for name, parameter in converted.named_parameters():
            if name.endswith("couplings.pairs"):
                nn.init.normal_(parameter, std=0.2)
        return converted

    def step(window: int, **options: Any) -> Call:
        decoder, ids = model(window, **options).train(), tokens(2, 256)
        return trained(decoder, lambda: decoder(input_ids=ids, labels=ids).loss, rate=3e-4)

    def token(window: int, **options: Any) -> Call:
        return decoding(model(window, **options), tokens(1, 128))

    kinds: dict[str, dict[str, Any]] = {
        "odds": {}, "odds, far none": {"far": "none"}, "probability": {"readout": "probability"},
    }  # fmt: skip
    rows = list[Case]()
    for what, way, target in (("training step", step, {12: 3.0}), ("decoded token", token, None)):
        peers = {name: Peer(partial(way, attention=name)) for name in ("sdpa", "eager")}
        peers["sdpa"] = replace(peers["sdpa"], target=target)
        for name, options in kinds.items():
            build: Build = partial(way, **options)
            rows.append(Case(f"Llama/{what}, {name}", build, (8, 12, 16), "T", peers=peers))
    return rows


def calibrated() -> list[Case]:
    """Calibrated attention in a Llama of 4 layers of width 512: prompts in one pass, and a token behind one."""
    settings: dict[str, dict[str, Any]] = {
        "off again": {}, "all heads, running": {}, "all heads, prompt": {"rows": "prompt"},
    }  # fmt: skip

    def build(size: str, setting: str = "", attention: str = "sdpa") -> Call:
        from diabat.heads import Calibration, disable_gac, enable_gac

        model = llama(4, 512, 16, 8, attention).eval()
        if setting:
            enable_gac(model, Calibration(salient={layer: () for layer in range(4)}, **settings[setting]))
        if setting == "off again":
            disable_gac(model)
        rows, length = (int(word) for word in size.split(" ")[-3::2])
        if size.startswith("token"):
            return decoding(model, tokens(rows, length))
        return torch.no_grad()(partial(model, tokens(rows, length), logits_to_keep=1, use_cache=True))

    sizes, rows = ("prompt 4 x 128", "prompt 1 x 512", "token behind 1 x 512"), list[Case]()
    for name in settings:
        sdpa = Peer(build, 1.05 if name == "off again" else None)
        peers = {"sdpa": sdpa, "eager": Peer(partial(build, attention="eager"))}
        rows.append(Case(f"calibration/{name}", partial(build, setting=name), sizes, "", peers=peers))
    return rows


ARMS: dict[str, tuple[dict[str, Any], float]] = {
    "sum, rho of the last step": ({"combination": "sum", "rho": "last_step"}, 1.05),
    "Nash every 10, rho of the last step": ({"nash_every": 10, "rho": "last_step"}, 1.1),
    "Nash every step": ({}, 1.4),
}


def fine_tuning() -> list[Case]:
    """Ten steps of 2 x 128 tokens with the losses on the fifth of six layers, against plain LoRA."""

    def build(_: Any, options: Mapping[str, Any] | None = None) -> Work:
        from peft import LoraConfig, get_peft_model

        from diabat.heads import GameLoss, GameOptions

        warnings.simplefilter("ignore")
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        adapters = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=targets)
        model, ids = get_peft_model(llama(6, 256, 8, 2), adapters).train(), tokens(2, 128)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        optimizer, game = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4), None
        if options is not None:
            game = GameLoss(model, GameOptions(layers=[4], warmup=0.0, cooldown=1.0, **options), 1_000_000)

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
            for _ in range(10):
                step()

        return Work(run, 10)

    rows = []
    for name, (options, most) in ARMS.items():
        peers = {"plain LoRA": Peer(build, most)}
        rows.append(Case(f"GAME-LoRA/{name}", partial(build, options=options), unit="step", peers=peers))
    return rows
