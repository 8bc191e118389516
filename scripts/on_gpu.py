"""Layers on a GPU, in at most eight minutes: numbers against the CPU, host reads, CUDA graphs, times beside SDPA.

    python scripts/on_gpu.py          # on a machine with a CUDA device
    python scripts/on_gpu.py --dry    # what of it runs on the CPU, on small sizes

Prints a JSON object on each line, as soon as it is known:

    numbers   largest difference from the layer on the CPU in float64, over the scale: outputs, gradients, tokens
    row       milliseconds and peak MiB of a forward and backward pass, and the ratio to SDPA, or to the layer with
              softmax, in the same dtype and mode: eager, graphed (a CUDA graph of the step) or compiled (one graph of
              torch); `waits` is null, or the line where a step waits for the device
    summary   device, versions, seconds, what is wrong, and which targets were missed

Exits with 1 if a number is wrong, or a step waits, cannot be compiled or captured; with 2 without a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from diabat import BoltzmannAttention, boltzmann_attention
from diabat.attention import WindowCouplings

SECONDS = 450  # no further row begins later
SLOTS: dict[str, Any] = {"relative": True, "far": "none"}
FAR: dict[str, Any] = {"relative": True, "far": "independent"}
WINDOWS: dict[str, dict[str, Any]] = {
    "positions": {},
    "positions, banded": {"window": 40, "bandwidth": 2, "sampler": "banded"},
    "slots": SLOTS,
    "ten slots": {"window": 10, **SLOTS},
    "far keys": FAR,
    "far keys, soft cap": {"softcap": 2.0, **FAR},
    "far keys, bias": {"offset_bias": True, **FAR},
    "triples": {"mode": "h+J+K", **SLOTS},
    "mean field": {"sampler": "mean_field", **SLOTS},
    "softmax": {"mode": "softmax", **FAR},
}
LIMITS = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-2}
# Ratios to SDPA, or to the layer with softmax, that are aimed at.
TARGETS = {
    ("window", "float32", "eager"): 0.6, ("far", "float32", "eager"): 1.6,
    ("window", "bfloat16", "eager"): 6.0, ("far", "bfloat16", "eager"): 9.0,
    ("paper", "float32", "eager"): 3.0, ("paper", "float32", "graphed"): 1.5,
}  # fmt: skip


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
            out, state = layer.prefill(x[:, :-4])
            for i in range(-4, 0):
                out, state = layer.step(x[:, i], state)
                found.append(out)
    return [t.detach().double().cpu() for t in found]


def compared(name: str, readout: str, padded: bool, device: str) -> dict[str, float]:
    """Largest difference from the CPU over the scale, by dtype."""
    length = 8 if name == "positions" else 40
    torch.manual_seed(0)
    layer: Any = BoltzmannAttention(16, 2, readout=readout, **{"window": 8} | WINDOWS[name])
    for part in layer.couplings.parameters():
        nn.init.normal_(part, std=0.4)
    x, padding = torch.randn(3, length, 16).double(), None
    if padded:
        padding = torch.zeros(3, length, dtype=torch.bool)
        padding[0, :2] = padding[1, -3:] = True
    want, worst = numbers(layer.double(), x.clone(), padding), {}
    for dtype in LIMITS:
        there = None if padding is None else padding.to(device)
        found = numbers(layer.to(device, dtype), x.to(device, dtype), there)
        layer.to("cpu", torch.float64)
        pairs = zip(found, want, strict=True)
        worst[str(dtype)[6:]] = max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs)
    return worst


class Attention(nn.Module):
    """SDPA of torch, or `boltzmann_attention` with a window of couplings."""

    def __init__(self, heads: int, far: str | None) -> None:
        super().__init__()
        self.far, self.couplings = far, None if far is None else WindowCouplings(heads, 8, init=0.2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        """Attend causally."""
        if self.far is None:
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        return boltzmann_attention(q, k, v, self.couplings, is_causal=True, far=self.far)


def cases(device: str, dtype: torch.dtype, dry: bool) -> Iterator[tuple[str, str, nn.Module, list[Tensor]]]:
    """Name, the name of the peer, module and inputs of the rows; a peer goes before those beside it."""
    B, H, L, d = (1, 2, 48, 8) if dry else (8, 8, 2048, 64)
    like: Any = {"device": device, "dtype": dtype, "requires_grad": True}
    qkv = [torch.randn(B, H, L, d, **like) for _ in range(3)]
    for name, far in (("SDPA", None), ("window", "none"), ("far", "independent")):
        yield name, "SDPA", Attention(H, far).to(device, dtype), qkv
    x = [torch.randn(4 if dry else 64, 8, 64, **like)]
    for name, mode in (("softmax", "softmax"), ("paper", "h+J")):
        layer = BoltzmannAttention(64, 1, 8, mode=mode, coupling_init=0.2, readout="probability")
        yield name, "softmax", layer.to(device, dtype), x


def clocked(run: Callable[[], Any], device: str) -> dict[str, float]:
    """Milliseconds of a call in the fastest of five rounds, and peak memory in MiB beyond what was held before."""
    cuda = device == "cuda"
    wait: Callable[[], Any] = torch.cuda.synchronize if cuda else lambda: None
    held = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    rounds, count = [], 1
    for _ in range(6 if cuda else 2):
        wait()
        began = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        rounds.append(1000 * (time.perf_counter() - began) / count)
        count = max(1, min(200, int(50 / rounds[0]))) if cuda else 1
    peak = torch.cuda.max_memory_allocated() - held if cuda else 0
    return {"ms": round(min(rounds), 4), "peak_mib": round(peak / 2**20, 1)}


def captured(run: Callable[[], list[Tensor]]) -> Callable[[], Any]:
    """A CUDA graph of a step, whose results are those of the step itself."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            want = run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    graph.replay()
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    return graph.replay


def waits(run: Callable[[], Any]) -> str | None:
    """Our last line before a step waits for the device; None if it does not."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f"{f.filename}:{f.lineno}: {f.line}" for f in frames if "diabat" in f.filename]
        return [str(error), *ours][-1]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def measured(module: nn.Module, inputs: list[Tensor], mode: str, device: str) -> dict[str, Any]:
    """A forward and backward pass in a mode: time, memory, and what went wrong."""
    leaves, call = [*inputs, *module.parameters()], module.__call__
    if mode == "compiled":
        torch._dynamo.reset()
        call = torch.compile(module, fullgraph=True, backend="inductor" if device == "cuda" else "eager")

    def run() -> list[Tensor]:
        out = call(*inputs)
        slopes = torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
        return [out, *(t for t in slopes if t is not None)]

    found: dict[str, Any] = {}
    try:
        run()  # tables are made, and code is compiled
        found["waits"] = waits(run) if device == "cuda" else None
        found |= clocked(captured(run) if mode == "graphed" else run, device)
    except Exception as error:  # the next row is still worth its time
        found["error"] = str(error).strip().split("\n")[0]
    return found


class Report:
    """Prints what was found, and remembers what is wrong."""

    def __init__(self, device: str) -> None:
        self.device, self.began = device, time.perf_counter()
        self.wrong: list[str] = []
        self.missed: list[str] = []

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return round(time.perf_counter() - self.began, 1)

    def say(self, kind: str, name: str, ok: bool, **facts: Any) -> None:
        """One line."""
        if not ok:
            self.wrong.append(name)
        print(json.dumps({"kind": kind, "name": name, "ok": ok, **facts}), flush=True)

    def numbers(self, windows: Iterable[str]) -> None:
        """Layers beside those on the CPU."""
        for window, readout, padded in product(windows, ("odds", "probability"), (False, True)):
            worst = compared(window, readout, padded, self.device)
            ok = all(worst[str(dtype)[6:]] <= limit for dtype, limit in LIMITS.items())
            self.say("numbers", f"{window}, {readout}{', padded' * padded}", ok, difference=worst)

    def rows(self, mode: str, dtype: torch.dtype) -> None:
        """Times beside those of the peers."""
        kind, peers = str(dtype)[6:], dict[str, float]()
        for name, peer, module, inputs in cases(self.device, dtype, self.device == "cpu"):
            label = f"{name}, {kind}, {mode}"
            if self.seconds > SECONDS:
                self.say("row", label, True, skipped=f"begins after {SECONDS} s")
                continue
            found = measured(module, inputs, mode, self.device)
            if "ms" in found:
                peers[name] = found["ms"]
                found["ratio"] = round(found["ms"] / peers.get(peer, math.nan), 3)
            target = TARGETS.get((name, kind, mode))
            if target is not None and not found.get("ratio", math.nan) <= target:
                self.missed.append(label)
            self.say("row", label, not (found.get("waits") or "error" in found), target=target, **found)


def main() -> int:
    """Numbers, then rows, then what they come to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dry", action="store_true", help="what runs on the CPU, on small sizes")
    dry = parser.parse_args().dry
    if not dry and not torch.cuda.is_available():
        print(
            "device: expected a CUDA device, got none; --dry runs a part of it on the CPU.", file=sys.stderr
        )
        return 2
    report = Report("cpu" if dry else "cuda")
    report.numbers(list(WINDOWS)[:2] if dry else WINDOWS)
    for mode in ("eager", "graphed", "compiled"):
        for dtype in (torch.float32, torch.bfloat16):
            if not dry or (mode, dtype) in (("eager", torch.bfloat16), ("compiled", torch.float32)):
                report.rows(mode, dtype)
    known: dict[str, Any] = {
        "device": "cpu" if dry else torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    known |= {"diabat": version("diabat"), "seconds": report.seconds}
    missed = [] if dry else report.missed
    report.say("summary", "all", not report.wrong, **known, wrong=report.wrong, missed=missed)
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())
