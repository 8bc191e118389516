"""The cost of large models: parameters, FLOP and memory of the formulas against models that are built and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads.decoder import key_value_groups
from diabat.attention.heads.replay import Replay
from experiments.heads_cost import (
    MODELS,
    Sizes,
    analysis_flops,
    batch_bytes,
    block_evaluations,
    layer_flops,
)

PUBLISHED = {  # billions, on the cards of the models
    "Llama-3.1-8B": 8.03, "Qwen2.5-0.5B": 0.494, "Qwen2.5-7B": 7.62, "Qwen2.5-14B": 14.8, "Qwen2.5-32B": 32.8,
}  # fmt: skip


def build(sizes: Sizes) -> Any:
    import transformers

    kind = "Qwen2" if sizes.bias else "Llama"
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=sizes.width, intermediate_size=sizes.inner, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.groups, vocab_size=sizes.vocabulary,
        tie_word_embeddings=sizes.tied, pad_token_id=None,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def sizes_of(model: Any) -> Sizes:
    c = model.config
    return Sizes(
        c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads,
        c.vocab_size, c.tie_word_embeddings, bias=c.model_type == "qwen2",
    )  # fmt: skip


def peak_bytes(model: Any, rows: int, tokens: int) -> int:
    """Of what is allocated at a time while a batch of coalitions of the second layer is replayed."""
    replay, ids = Replay(model, "mean", 1e-5), torch.arange(tokens)
    replay.groups = key_value_groups(replay.decoder.sites, 1)
    present = all_coalitions(len(replay.groups))[:rows]
    with replay.ablation.applied():
        states = replay.prefix(ids)
        replay.suffix(states, ids, present[:1], torch.tensor([-1]))
        with profile(profile_memory=True) as profiler:
            replay.suffix(states, ids, present, torch.tensor([-1]))
    # The public averages have sums per operator only; a peak needs the allocations in their order.
    events: Sequence[Any] = profiler.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    held, peak = 0, 0
    for _, change in sorted(changes, key=lambda event: event[0]):
        held += change
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_models(name: str) -> None:
    with torch.device("meta"):
        model = build(MODELS[name])
    count = sum(parameter.numel() for parameter in model.parameters())
    assert MODELS[name].parameters == count
    assert count / 1e9 == pytest.approx(PUBLISHED[name], rel=5e-3)
    assert sizes_of(model) == MODELS[name]


@pytest.mark.parametrize("replay", [True, False], ids=["replay", "direct"])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_flops_are_those_that_are_counted(layer: int, replay: bool) -> None:
    """With eager attention: torch has no count for the kernel of sdpa on CPUs."""
    sizes, tokens, batch = Sizes(64, 96, 4, 8, 4, 50), 20, 6
    model = build(sizes)
    model.set_attn_implementation("eager")
    game, ids, last = Replay(model, "mean", 1e-5), torch.arange(tokens), torch.tensor([-1])
    game.groups = key_value_groups(game.decoder.sites, layer)
    with game.ablation.applied(), FlopCounterMode(display=False) as counter:
        states = game.prefix(ids) if replay else None
        for present in all_coalitions(4).split(batch):
            if states is None:
                game.direct(ids, present, last)
            else:
                game.suffix(states, ids, present, last)
    assert counter.get_total_flops() == layer_flops(sizes, layer, tokens, batch, replay=replay)


def test_the_flops_of_an_analysis_are_those_of_its_layers() -> None:
    sizes = Sizes(64, 96, 4, 8, 4, 50)
    for replay in (True, False):
        layers = [layer_flops(sizes, layer, 20, 6, replay=replay) for layer in range(4)]
        assert analysis_flops(sizes, 20, 6, replay=replay) == sum(layers)
    assert block_evaluations(sizes) == 16 * (4 + 3 + 2 + 1) + (0 + 1 + 2 + 3)
    assert block_evaluations(sizes, replay=False) == 16 * 4 * 4


@pytest.mark.parametrize(("width", "tokens"), [(256, 64), (128, 128), (64, 16)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_memory_is_that_of_the_allocations(attention: str, width: int, tokens: int) -> None:
    model = build(Sizes(width, 3 * width, 3, 8, 4, 300))
    model.set_attn_implementation(attention)
    measured = peak_bytes(model, 12, tokens)
    expected = batch_bytes(sizes_of(model), 12, tokens, eager=attention == "eager")
    assert expected == pytest.approx(measured, rel=0.03)
