"""A person from Hugging Face: couplings in a decoder of transformers, trained, saved, ablated, reverted.

python examples/converted_decoder.py        (extra hf; the decoder is a small one with random weights)
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from diabat.attention import couplings_of
from diabat.huggingface import convert, parameter_groups, revert


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model: Any = LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 64, (4, 20))
    with torch.no_grad():
        before = model(ids).logits
        model = convert(model, window=8)  # in place; J = 0, so that nothing changes yet
        difference = (model(ids).logits - before).abs().max().item()
    print(f"largest change of a logit by the conversion: {difference:.1e}")
    assert difference < 1e-5

    optimizer = torch.optim.AdamW(parameter_groups(model.train(), lr=1e-3, coupling_lr=3e-3))
    losses = []
    for _ in range(20):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps")
    assert losses[-1] < losses[0]

    model.eval()
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    print("continued:", loaded.generate(ids[:1], max_new_tokens=8, do_sample=False)[0, 20:].tolist())

    couplings = couplings_of(loaded)
    for name, layer in couplings.items():
        J, _ = layer.by_pair()
        print(f"{name}: mean |J| {0.0 if J is None else J.abs().mean().item():.4f}")
        layer.hold(0)  # without couplings: what are they worth?
    with torch.no_grad():
        pair = [one(ids, labels=ids).loss.item() for one in (model, loaded)]
    print(f"loss {pair[0]:.3f} with couplings, {pair[1]:.3f} without")
    assert type(revert(model)) is LlamaForCausalLM  # a model of transformers again


if __name__ == "__main__":
    main()
