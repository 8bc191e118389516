"""Γ of a trained decoder by aggregation of the tokens, and in other bases of its value heads.

    python -m experiments.head_bases [--steps 400] [--json]

Five bases are rotated, five also stretched by e^N(0, ¼) along the axes; the function of the model stays.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from diabat.attention.heads import HeadInteractions, LayerInteraction
from diabat.attention.heads.couplings import (
    cosines,
    gradient_coupling,
    interaction,
    interaction_strength,
    normalised,
    weight_coupling,
)
from diabat.attention.heads.outputs import HeadOutputs
from diabat.attention.heads.targets import counted_tokens, total_cross_entropy
from experiments.common import Row, parser, report
from experiments.small_decoder import draw_batch, trained_decoder

BASES = 5


def rebased(model: Any, seed: int, stretch: float) -> Any:
    """The same function in another basis of every value head."""
    changed, g = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in changed.model.layers:
            attention = block.self_attn
            size, value, output = attention.head_dim, attention.v_proj.weight, attention.o_proj.weight
            for group in range(len(value) // size):
                Q = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64))[0]
                M = (stretch * torch.randn(size, 1, generator=g, dtype=torch.float64)).exp() * Q
                inverse, rows = torch.linalg.inv(M).float(), slice(group * size, (group + 1) * size)
                value[rows] = M.float() @ value[rows]
                for head in range(attention.num_key_value_groups):
                    start = (group * attention.num_key_value_groups + head) * size
                    output[:, start : start + size] = output[:, start : start + size] @ inverse
    return changed


def aggregated(model: Any, batches: list[dict[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
    """G of every layer with ρ of concatenated tokens, the mean cosine of tokens, and the cosine of mean gradients."""
    outputs, gradients = HeadOutputs(model), defaultdict(list)
    for batch in batches:
        counted = counted_tokens(batch)
        with outputs.capture() as captured:
            logits = model(batch["input_ids"], use_cache=False).logits
        found = captured.gradients(total_cross_entropy(logits, batch, counted), retain_graph=False)
        for layer, one in found.items():
            gradients[layer].append(one.heads[counted].double())
    result = {}
    for layer, parts in gradients.items():
        g = torch.cat(parts)  # [N, H, d]
        rho = {"concatenated": gradient_coupling(g), "per_token": normalised(cosines(g).sum(0)),
               "mean_gradient": cosines(g.sum(0))}  # fmt: skip
        omega = weight_coupling(outputs.slices(layer).detach())
        result[layer] = {name: interaction(omega, one) for name, one in rho.items()}
    return result


def total_correlation(found: LayerInteraction) -> float:
    """TC in nats; there are more tokens than features here."""
    assert found.information is not None
    return found.information.total_correlation


def bases(model: Any, batches: list[dict[str, Tensor]]) -> list[Row]:
    """One row for each layer."""
    others = [rebased(model, seed, stretch) for stretch in (0.0, 0.5) for seed in range(BASES)]
    with torch.no_grad():
        logits = [one(batches[0]["input_ids"]).logits for one in (model, *others)]
    moved = max(float((one - logits[0]).abs().max()) for one in logits[1:])
    own = aggregated(model, batches)
    changed = [HeadInteractions(one).measure(batches) for one in others]
    rows = []
    for layer, found in HeadInteractions(model).measure(batches).items():
        gammas, total = [one[layer].gamma for one in changed], total_correlation(found)
        rows.append({
            "layer": layer, **{f"Γ {name}": float(interaction_strength(G)) for name, G in own[layer].items()},
            "Γ rotated": f"{min(gammas[:BASES]):.3f} .. {max(gammas[:BASES]):.3f}",
            "Γ stretched": f"{min(gammas[BASES:]):.3f} .. {max(gammas[BASES:]):.3f}",
            "Γ'": found.invariant_gamma,
            "Γ' moves by": max(abs(one[layer].invariant_gamma - found.invariant_gamma) for one in changed),
            "TC": total, "TC moves by": max(abs(total_correlation(one[layer]) - total) for one in changed),
            "logits move by": moved,
            "least eigenvalue of G": min(float(torch.linalg.eigvalsh(G)[0]) for G in own[layer].values()),
        })  # fmt: skip
    return rows


def main() -> None:
    """Train the decoder and print the table."""
    command = parser(__doc__)
    command.add_argument("--steps", type=int, default=400, help="of the training")
    options = command.parse_args()
    torch.set_num_threads(1)
    model, tokens, _ = trained_decoder(options.steps)
    g = torch.Generator().manual_seed(1)
    batches = [draw_batch(tokens[len(tokens) * 9 // 10 :], g) for _ in range(4)]
    title = f"Head interaction of a decoder trained for {options.steps} steps"
    report(title, bases(model, batches), as_json=options.json)


if __name__ == "__main__":
    main()
