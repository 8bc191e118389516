r"""Theorem 2.1 and inequality (40) of GAME-LoRA on a small decoder, in the output slices θ_h = W_O[h] of every layer.

    python -m experiments.curvature [--steps 400] [--json]

    C_i = π_i D + α/2 ‖θ_i‖²,  Φ = D + α/2 Σ ‖θ_i‖²/π_i      (2.1)  ∂C_i/∂θ_i = π_i ∂Φ/∂θ_i
    L = ‖∇²D‖ by power iteration                              (40)   ‖∂²D/∂θ_i∂θ_j‖_F ≤ L |G_ij|
    ‖∂²D/∂θ_i∂θ_j‖_F from E‖(∇²D v)_i‖², v normal on slice j  (Hutchinson)

D is the mean cross-entropy.  This L is that of one point: assumption 2.1 wants the largest over all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from diabat.heads import HeadInteractions
from diabat.tasks.data import fetch
from experiments.common import Row, parser, report

Batch = dict[str, Tensor]
LENGTH = 128


def trained_decoder(steps: int) -> tuple[Any, Tensor]:
    """A Llama of four layers, eight heads and two groups, trained on characters; and the tokens held out."""
    import transformers

    text = fetch("tinyshakespeare").read_text(encoding="utf-8")
    index = {symbol: k for k, symbol in enumerate(sorted(set(text)))}
    tokens = torch.tensor([index[symbol] for symbol in text])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(index), hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    cut, g = len(tokens) * 9 // 10, torch.Generator().manual_seed(0)
    for _ in range(steps):
        model(**draw_batch(tokens[:cut], g, 16)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval(), tokens[cut:]


def draw_batch(tokens: Tensor, g: torch.Generator, rows: int) -> Batch:
    """Random pieces of a text, every token a target."""
    starts = torch.randint(len(tokens) - LENGTH, (rows,), generator=g)
    pieces = torch.stack([tokens[start : start + LENGTH] for start in starts])
    return {"input_ids": pieces, "labels": pieces.clone()}


def output_weight(model: Any, layer: int) -> Tensor:
    """W_O of a layer, [hidden, H d]."""
    return model.model.layers[layer].self_attn.o_proj.weight


def slices(model: Any, weight: Tensor) -> Tensor:
    """θ_h of a weight [hidden, H d], [H, hidden, d]."""
    return weight.unflatten(1, (model.config.num_attention_heads, -1)).transpose(0, 1)


def distortion(model: Any, batch: Batch) -> Tensor:
    """D, in the precision of the model."""
    logits = model(batch["input_ids"], use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


def theorem_2_1(model: Any, batch: Batch, layer: int, ridge: float = 0.7) -> float:
    """Largest |∂C_i/∂θ_i - π_i ∂Φ/∂θ_i| over all players, relative to the largest derivative."""
    weight, count = output_weight(model, layer), model.config.num_attention_heads
    shares = torch.arange(1.0, count + 1).to(weight) / (count * (count + 1) / 2)
    D, squares = distortion(model, batch), slices(model, weight).square().sum((1, 2))

    def gradient(of: Tensor) -> Tensor:
        return slices(model, torch.autograd.grad(of, weight, retain_graph=True)[0])

    costs = shares * D + 0.5 * ridge * squares
    private = torch.stack([gradient(cost)[i] for i, cost in enumerate(costs)])
    shared = shares[:, None, None] * gradient(D + 0.5 * ridge * (squares / shares).sum())
    return float((private - shared).abs().max() / private.abs().max())


def measure(
    model: Any, batch: Batch, layer: int, *, probes: int = 16, tolerance: float = 1e-2, seed: int = 0
) -> tuple[float, Tensor, Tensor]:
    """L, ‖∂²D/∂θ_i∂θ_j‖_F [H, H], and the standard errors of the latter."""
    weight = output_weight(model, layer)
    g = torch.Generator().manual_seed(seed)
    shape = slices(model, weight).shape
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # which can be differentiated twice
        gradient = slices(model, torch.autograd.grad(distortion(model, batch), weight, create_graph=True)[0])

        def product(v: Tensor) -> Tensor:
            inner = (gradient * v).sum()
            return slices(model, torch.autograd.grad(inner, weight, retain_graph=True)[0])

        L = largest_curvature(
            product, torch.randn(shape, generator=g, dtype=torch.float64).to(weight), tolerance
        )
        squares = torch.stack([_block_squares(product, shape, g, weight) for _ in range(probes)])
    squares = (squares + squares.transpose(1, 2)) / 2
    norms = squares.mean(0).sqrt()
    # The error of a root: that of the square over twice the root.
    return L, norms, squares.std(0) / probes**0.5 / (2 * norms)


def largest_curvature(
    product: Callable[[Tensor], Tensor], v: Tensor, tolerance: float, most: int = 2000
) -> float:
    """Largest |eigenvalue| by power iteration, until it changes by less than the relative tolerance."""
    before = 0.0
    for _ in range(most):
        v = product(v / v.norm())
        found = float(v.norm())
        if abs(found - before) <= tolerance * found:
            return found
        before = found
    raise RuntimeError(f"power iteration has not converged to {tolerance:g} within {most} products.")


def _block_squares(
    product: Callable[[Tensor], Tensor], shape: torch.Size, g: torch.Generator, like: Tensor
) -> Tensor:
    """‖(∇²D v)_i‖² for v normal on slice j, float64 [H, H]."""
    v = torch.randn(shape, generator=g, dtype=torch.float64).to(like)
    columns = []
    for j in range(len(v)):
        only = torch.zeros_like(v)
        only[j] = v[j]
        columns.append(product(only).double().square().sum((1, 2)))
    return torch.stack(columns, 1)


def table(model: Any, batch: Batch) -> list[Row]:
    """Theorem 2.1, inequality (40) and the condition of theorem 2.2 in every layer."""
    rows = []
    for layer, found in HeadInteractions(model).measure(batch).items():
        L, norms, _ = measure(model, batch, layer)
        i, j = torch.triu_indices(len(norms), len(norms), offset=1)
        ratios = (norms / (L * found.G.abs()))[i, j]
        rows.append({
            "layer": layer, "(2.1) off by": theorem_2_1(model, batch, layer), "Γ": found.gamma, "L": L,
            "pairs": len(ratios), "violate (40)": int((ratios > 1).sum()), "median ratio": float(ratios.median()),
            "smallest": float(ratios.min()), "‖H_ii‖/L": float(norms.diagonal().max()) / L,
            "violate, L = max ‖H_ij‖": int((ratios > norms.max() / L).sum()), "least α": L * found.gamma**2,
        })  # fmt: skip
    return rows


def main() -> None:
    """Train the decoder and print the table."""
    command = parser(__doc__)
    command.add_argument("--steps", type=int, default=400, help="of the training")
    options = command.parse_args()
    torch.set_num_threads(1)
    model, tokens = trained_decoder(options.steps)
    batch = draw_batch(tokens, torch.Generator().manual_seed(1), 8)
    title = f"Inequality (40) on a decoder trained for {options.steps} steps"
    report(title, table(model, batch), as_json=options.json)


if __name__ == "__main__":
    main()
