"""Γ of a trained decoder by aggregation of its tokens and in other bases of its heads, and the time of a measurement.

python -m benchmarks.heads_interaction [--json] [--steps 400]
"""

from __future__ import annotations

import argparse
import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import report, seconds
from benchmarks.small_decoder import draw_batch, trained_decoder
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

BASES = 5


def rebased(model: Any, seed: int, stretch: float) -> Any:
    """The same function in another basis of every value head: rotated, and stretched by e^N(0, stretch²) along axes."""
    changed = copy.deepcopy(model)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in changed.model.layers:
            attention = block.self_attn
            size, value, output = attention.head_dim, attention.v_proj.weight, attention.o_proj.weight
            for group in range(len(value) // size):
                Q = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64))[0]
                M = (stretch * torch.randn(size, 1, generator=g, dtype=torch.float64)).exp() * Q
                inverse = torch.linalg.inv(M).float()
                value[group * size : (group + 1) * size] = (
                    M.float() @ value[group * size : (group + 1) * size]
                )
                for head in range(attention.num_key_value_groups):
                    start = (group * attention.num_key_value_groups + head) * size
                    output[:, start : start + size] = output[:, start : start + size] @ inverse
    return changed


def gauges(model: Any, batches: list[dict[str, Tensor]]) -> list[dict[str, Any]]:
    """Γ by layer, in the basis of the training and in others: five rotated ones, and five stretched ones."""
    others = [rebased(model, seed, stretch) for stretch in (0.0, 0.5) for seed in range(BASES)]
    with torch.no_grad():
        logits = [m(batches[0]["input_ids"]).logits for m in (model, *others)]
    moved = max(float((one - logits[0]).abs().max()) for one in logits[1:])
    own, found_in = aggregated(model, batches), HeadInteractions(model).measure(batches)
    changed = [HeadInteractions(m).measure(batches) for m in others]
    rows = []
    for layer, found in found_in.items():
        gammas = [c[layer].gamma for c in changed]
        invariant = [abs(c[layer].invariant_gamma - found.invariant_gamma) for c in changed]
        total = total_correlation(found)
        correlation = [abs(total_correlation(c[layer]) - total) for c in changed]
        least = min(float(torch.linalg.eigvalsh(G)[0]) for G in own[layer].values())
        rows.append({
            "layer": layer,
            **{f"Γ {name}": float(interaction_strength(G)) for name, G in own[layer].items()},
            "Γ rotated": f"{min(gammas[:BASES]):.3f} .. {max(gammas[:BASES]):.3f}",
            "Γ stretched": f"{min(gammas[BASES:]):.3f} .. {max(gammas[BASES:]):.3f}",
            "Γ'": found.invariant_gamma,
            "Γ' moves by": max(invariant),
            "TC": total,
            "TC moves by": max(correlation),
            "logits move by": moved,
            "least eigenvalue of G": least,
        })  # fmt: skip
    return rows


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


def times(model: Any, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Seconds of a measurement of all layers, against a forward and backward pass."""
    interactions = HeadInteractions(model)
    without = HeadInteractions(model, information=False)

    def step() -> None:
        model(**batch).loss.backward()

    def timed(f: Any) -> float:
        return min(seconds(f) for _ in range(5))

    plain = timed(step)
    rows = {
        "forward and backward": plain,
        "measure, without information": timed(lambda: without.measure(batch)),
        "measure": timed(lambda: interactions.measure(batch)),
    }
    return [{"": name, "ms": 1e3 * value, "ratio": value / plain} for name, value in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokens, _ = trained_decoder(options.steps)
    g = torch.Generator().manual_seed(1)
    batches = [draw_batch(tokens[len(tokens) * 9 // 10 :], g) for _ in range(4)]
    report(f"Head interaction of a decoder trained for {options.steps} steps", gauges(model, batches))
    report("Time of a batch of 16 x 128 tokens", times(model, batches[0]))


if __name__ == "__main__":
    main()
