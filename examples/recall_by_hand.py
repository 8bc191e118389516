"""Associative recall in one layer, with weights written down: couplings bind a value to its key (docs/recall.md).

python examples/recall_by_hand.py
"""

from __future__ import annotations

import math

import torch

from diabat.lab.models.transformer import Transformer, TransformerOptions
from diabat.lab.tasks import IGNORED, RecallOptions


@torch.no_grad()
def recall_by_hand(task: RecallOptions, coupling: float, field: float) -> Transformer:
    """One layer without training.

    A key that equals the query has the field +c, everything else -c; J > 0 between the two positions of a pair.  With
    large c the odds of its value and of the other values differ by the factor exp(4J).
    """
    size, symbols = 2 * task.symbols + 1, task.symbols
    options = TransformerOptions(
        embed_dim=size, ffn_dim=0, dropout=0.0, mode="h+J", readout="probability", bandwidth=1
    )
    model = Transformer(options, size, symbols, task.window, sampler="banded")
    assert model.positions is not None
    keys, values = torch.zeros(2, size, size)
    keys.diagonal()[:symbols] = 1.0
    values.diagonal()[symbols:-1] = 1.0
    for parameter in model.parameters():
        parameter.zero_()
    model.symbols.weight.copy_(torch.eye(size))
    block = model.all_blocks()[0]
    norm, layer = block.attention_norm, block.attention
    norm.weight.fill_(math.sqrt((1 - 1 / size) / size + norm.eps))  # undoes the norm of a one-hot vector
    norm.bias.fill_(1 / size)
    layer.query.weight.copy_(2 * field * math.sqrt(size) * keys)
    layer.key.weight.copy_(keys)
    layer.query.bias[-1], layer.key.bias[-1] = -field * math.sqrt(size), 1.0
    layer.value.weight.copy_(values)
    layer.output.weight.copy_(torch.eye(size))
    first, pairs = task.window - task.queries - 2 * task.longest, layer.couplings.get_parameter("pairs")
    pairs[:, first : task.window - task.queries : 2] = coupling  # the pairs (0, 1), (2, 3), ...
    model.norm.weight.fill_(1.0)
    model.head.weight.copy_(torch.eye(size)[symbols:-1])
    return model.eval()


def main() -> None:
    print("pairs    J    exp(4J)   accuracy   without J")
    for pairs in (4, 8, 16, 32, 64):
        task = RecallOptions(
            pairs=pairs, symbols=max(16, pairs), queries=4, num_train=1, num_validation=1, num_test=1000
        )
        test = task.build().test
        assert test is not None
        J = math.log(2 * pairs) / 4
        row = []
        for coupling in (J, 0.0):
            with torch.no_grad():
                found = recall_by_hand(task, coupling, field=J + 4.0)(test.inputs).argmax(-1)
            asked = test.targets != IGNORED
            row.append((found == test.targets)[asked].double().mean().item())
        print(f"{pairs:5}  {J:5.3f}  {math.exp(4 * J):6.1f}   {row[0]:7.1%}   {row[1]:7.1%}")


if __name__ == "__main__":
    main()
