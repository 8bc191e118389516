"""Compare layers of attention on a GPU with the CPU, and time them beside scaled_dot_product_attention.

    python scripts/on_gpu.py

Outputs, weights, derivatives and decoded tokens, with and without padding, are held against the same layers on the CPU
in float64. Exits with 1 if one differs by more than 1e-9 of the scale in float64 or 2e-4 in float32.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from diabat import BoltzmannAttention, boltzmann_attention
from diabat.attention import WindowCouplings

WINDOWS: dict[str, dict[str, Any]] = {
    "positions": {"window": 40, "bandwidth": 2, "sampler": "banded"},
    "slots": {"relative": True, "far": "none"},
    "far keys": {"relative": True, "far": "independent"},
    "far keys, soft cap": {"relative": True, "far": "independent", "softcap": 2.0},
    "far keys, bias": {"relative": True, "far": "independent", "offset_bias": True},
    "triples": {"relative": True, "far": "none", "mode": "h+J+K"},
    "mean field": {"relative": True, "far": "none", "sampler": "mean_field"},
    "softmax": {"relative": True, "far": "independent", "mode": "softmax"},
}


def built(name: str, readout: str) -> Any:
    """A layer with random parameters, the same for the same name."""
    torch.manual_seed(0)
    layer: Any = BoltzmannAttention(16, 2, readout=readout, **{"window": 8} | WINDOWS[name])
    for part in layer.couplings.parameters():
        nn.init.normal_(part, std=0.4)
    return layer.double()


def numbers(layer: Any, x: Tensor, padding: Tensor | None) -> list[Tensor]:
    """What a layer computes of tokens, in float64 on the CPU."""
    x = x.requires_grad_()
    out, weights = layer(x, padding, True)
    slopes = torch.autograd.grad(
        layer(x, padding).square().sum(), [x, *layer.parameters()], allow_unused=True
    )
    found = [out, weights, *(g for g in slopes if g is not None)]
    if padding is None and layer.relative:
        with torch.no_grad():
            out, state = layer.prefill(x[:, :36])
            for i in range(36, 40):
                out, state = layer.step(x[:, i], state)
                found.append(out)
    return [t.detach().double().cpu() for t in found]


def compared(name: str, readout: str, padded: bool) -> list[float]:
    """Largest difference from the CPU over the scale, in float64 and in float32."""
    x, padding = torch.randn(3, 40, 16, generator=torch.Generator().manual_seed(1)).double(), None
    if padded:
        padding = torch.zeros(3, 40, dtype=torch.bool)
        padding[0, :5] = padding[1, 33:] = True
    want, worst = numbers(built(name, readout), x.clone(), padding), []
    for dtype in (torch.float64, torch.float32):
        there = None if padding is None else padding.cuda()
        found = numbers(built(name, readout).to("cuda", dtype), x.to("cuda", dtype), there)
        pairs = zip(found, want, strict=True)
        worst.append(max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs))
    return worst


def clock(call: Callable[[], Any]) -> str:
    """Milliseconds of a call with its derivative, and peak memory."""
    call().sum().backward()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(5):
        call().sum().backward()
    torch.cuda.synchronize()
    milliseconds = 200 * (time.perf_counter() - began)
    return f"{milliseconds:8.1f} ms {torch.cuda.max_memory_allocated() / 2**30:6.2f} GiB"


def main() -> int:
    """Compare, then time 4,096 tokens of 8 heads."""
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    wrong = 0
    for name in WINDOWS:
        for readout in ("odds", "probability"):
            for padded in (False, True):
                double, single = compared(name, readout, padded)
                wrong += not (double < 1e-9 and single < 2e-4)
                print(
                    f"{name:20} {readout:12} {'padded' if padded else '':7} {double:.1e} {single:.1e}",
                    flush=True,
                )
    q, k, v = (torch.randn(1, 8, 4096, 64, device="cuda", requires_grad=True) for _ in range(3))
    window = WindowCouplings(8, 8, init=0.2).cuda()
    causal: dict[str, Any] = {"is_causal": True}
    for what, call in {
        "scaled_dot_product_attention": lambda: scaled_dot_product_attention(q, k, v, **causal),
        "window of 8": lambda: boltzmann_attention(q, k, v, window, far="none", **causal),
        "window of 8, far keys": lambda: boltzmann_attention(q, k, v, window, far="independent", **causal),
    }.items():
        print(f"{what:30} {clock(call)}", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
