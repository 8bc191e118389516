"""torch.compile and torch.func on models with our layers: seconds to the first step, then steps against eager mode.

python -m benchmarks.torch_compile [--json]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from benchmarks.measure import paired, report
from diabat import BoltzmannAttention
from diabat.models import Transformer, TransformerOptions

VOCABULARY, BATCH, MODELS = 61, 64, 8


def model_and_step(
    sampler: str, window: int
) -> tuple[Transformer, Callable[[Callable[..., Tensor]], Tensor]]:
    """The paper's Tiny Shakespeare model, and a training step without the optimiser."""
    torch.manual_seed(0)
    model = Transformer(TransformerOptions(mode="h+J", dropout=0.0), VOCABULARY, VOCABULARY, window, sampler)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    symbols, targets = (torch.randint(VOCABULARY, (BATCH, window)) for _ in range(2))

    def step(called: Callable[..., Tensor]) -> Tensor:
        torch.manual_seed(1)  # of the reads
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(called(symbols).flatten(0, 1), targets.flatten())
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    return model, step


def compiled_rows() -> list[dict[str, Any]]:
    """One graph (fullgraph) by the default compiler, forward and backward."""
    rows = []
    for sampler in ("exact", "banded", "mean_field", "tempering", "dqa"):
        for window in (8, 16) if sampler == "exact" else (8,):
            torch._dynamo.reset()
            model, step = model_and_step(sampler, window)
            compiled = torch.compile(model, fullgraph=True)
            want = step(model)
            start = time.perf_counter()
            got = step(compiled)
            first = time.perf_counter() - start
            plain, fast, ratio = paired(partial(step, model), partial(step, compiled), rounds=31)
            rows.append(
                {
                    "sampler": sampler, "T": window, "first step [s]": first, "eager step [ms]": plain * 1e3,
                    "compiled step [ms]": fast * 1e3, "eager / compiled": ratio,
                    "largest difference of gradients": float((got - want).abs().max() / want.abs().max()),
                }
            )  # fmt: skip
    return rows


def vmap_rows() -> list[dict[str, Any]]:
    """Gradients of eight layers at once, by vmap over their stacked parameters, against a loop over them."""
    rows = []
    for sampler in ("exact", "banded", "mean_field"):
        torch.manual_seed(0)
        layers = [BoltzmannAttention(64, 1, 8, sampler=sampler) for _ in range(MODELS)]
        parameters, buffers = stack_module_state(layers)
        x = torch.randn(BATCH, 8, 64)

        def loss(p: Any, b: Any, layer: Any = layers[0], x: Tensor = x) -> Tensor:
            y: Tensor = functional_call(layer, (p, b), (x,))
            return y.square().mean()

        def loop(layers: Any = layers, loss: Any = loss) -> list[Any]:
            return [grad(loss)(dict(m.named_parameters()), dict(m.named_buffers())) for m in layers]

        def mapped(p: Any = parameters, b: Any = buffers, loss: Any = loss) -> Any:
            return vmap(grad(loss))(p, b)

        together, apart = mapped(), loop()
        worst = max(
            float((together[k][i] - apart[i][k]).abs().max()) for k in together for i in range(MODELS)
        )
        slow, fast, ratio = paired(loop, mapped, rounds=15)
        rows.append(
            {
                "sampler": sampler, "loop [ms]": slow * 1e3, "vmap [ms]": fast * 1e3, "loop / vmap": ratio,
                "largest difference": worst,
            }
        )  # fmt: skip
    return rows


def main() -> None:
    torch.set_num_threads(1)  # as the shipped configurations do
    report(f"torch.compile, forward and backward, batch {BATCH}", compiled_rows())
    report(f"vmap over {MODELS} layers, T = 8, batch {BATCH}", vmap_rows())


if __name__ == "__main__":
    main()
