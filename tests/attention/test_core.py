"""The core says which path a call takes, and options of attention are written in three lists that agree."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from layers import attention, padded, tokens

import diabat
from diabat.attention import WindowCouplings
from diabat.attention.core import Law, LawOptions
from diabat.attention.readout import READOUTS
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import BoltzmannHeads
from diabat.lab.config import load_config, shipped_configs
from diabat.lab.models import TransformerOptions

# Options of a layer, arguments of its call, and the path that they take.
PATHS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "compiled"),
    ({"readout": "odds", "relative": True}, {}, "compiled"),
    ({"window": 4, "relative": True}, {"key_padding_mask": padded()}, "compiled"),
    ({"window": 4, "relative": True}, {"need_weights": True}, "compiled"),
    ({"relative": True, "far": "independent"}, {}, "compiled"),
    ({"bandwidth": 2, "sampler": "banded"}, {}, "compiled"),
    ({"mode": "h"}, {}, "compiled"),
    ({"mode": "softmax"}, {}, "softmax"),
    ({"mode": "softmax"}, {"need_weights": True}, "operators"),
    ({"mode": "softmax", "relative": True, "far": "independent"}, {}, "softmax"),
    ({"mode": "softmax", "relative": True}, {}, "compiled"),
    ({"mode": "h", "relative": True, "readout": "odds"}, {}, "compiled"),
    ({"mode": "softmax", "relative": True, "offset_bias": True}, {}, "operators"),
    ({"mode": "softmax", "relative": True, "softcap": 2.0}, {}, "operators"),
    ({"relative": True, "offset_bias": True}, {}, "operators"),
    ({"mode": "h+J+K"}, {}, "operators"),
    ({"sampler": "tempering"}, {}, "operators"),
    ({"softcap": 2.0}, {}, "operators"),
]


@pytest.mark.parametrize(("options", "given", "path"), PATHS)
def test_a_layer_says_which_path_it_took(options: dict[str, Any], given: dict[str, Any], path: str) -> None:
    layer = attention(**{"window": 11} | options)
    with layer.recording():
        layer(tokens(3), **given)
        assert layer.last_path() == path
    with pytest.raises(RuntimeError, match="forward passes are not recorded"):
        layer.last_path()


def test_nothing_compares_the_name_of_a_readout() -> None:
    assert compared() == []


def compared() -> list[str]:
    """Files that compare the name of a readout, among those that know readouts."""
    root, found = Path(diabat.__file__).parent, []
    units = ("attention", "models", "huggingface")
    for path in (path for unit in units for path in sorted((root / unit).rglob("*.py"))):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Compare)]
        constants = (c.value for n in nodes for c in ast.walk(n) if isinstance(c, ast.Constant))
        if {*READOUTS} & {c for c in constants if isinstance(c, str)}:
            found.append(path.relative_to(root).as_posix())
    return found


def test_options_of_attention_are_the_same_in_all_lists() -> None:
    """An option is written in `Law`, in `LawOptions` and in the function; layers take it by `LawOptions`."""
    backend, call = {"sampler", "gradient", "num_reads"}, {"seed", "need_weights", "scale"}
    options = set(LawOptions.__annotations__)
    function = inspect.signature(diabat.boltzmann_attention).parameters.values()
    named = {p.name for p in function if p.kind is p.KEYWORD_ONLY}
    law = {field.name for field in fields(Law) if field.init} - {"fields", "own_spin", "bridge"}
    assert options - backend == law
    assert options | call == named | {"scale"}


DEFAULTS: dict[str, Callable[[], Any]] = {
    "window": lambda: diabat.BoltzmannAttention(8, 2, 3, relative=True),
    "positions": lambda: diabat.BoltzmannAttention(8, 2, 11),
    "drop-in": lambda: diabat.BoltzmannMultiheadAttention(8, 2, window=11),
    "model": lambda: TransformerOptions(embed_dim=8, relative=True).attention(3, None),
    "converted": lambda: BoltzmannHeads(2, BoltzmannOptions(3)),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_same_everywhere(name: str) -> None:
    """Also of the function, whose couplings of 0 are softmax of all keys."""
    layer = DEFAULTS[name]()
    assert (layer.readout, layer.far) == ("odds", "independent" if layer.couplings.relative else "none")
    q, k, v = torch.randn(3, 1, 2, 11, 4)
    J = WindowCouplings(2, layer.couplings.window, relative=layer.couplings.relative)
    softmax = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(diabat.boltzmann_attention(q, k, v, J, is_causal=True), softmax)


def test_configurations_of_the_paper_name_its_law() -> None:
    """So that a training gives the numbers of the pages whatever the defaults are."""
    names = [n for n in shipped_configs() if n.startswith(("brackets", "recall-exact", "shakespeare-t"))]
    assert len(names) == 9
    for name in names:
        model: Any = load_config(name).model
        assert (model.readout, model.far) == ("probability", "none"), name


def test_a_token_of_a_window_is_a_single_query() -> None:
    """Its problem is the one of a full pass."""
    layer, x = attention(4, relative=True, far="independent", readout="odds"), tokens()
    with torch.no_grad(), layer.recording():
        layer(x)
        whole = layer.last_problem()
        _, state = layer.prefill(x[:, :-1])
        layer.step(x[:, -1], state)
        assert layer.last_path() == "compiled"
        one = layer.last_problem()
    torch.testing.assert_close(one.fields[:, :, 0], whole.fields[:, :, -1])
    torch.testing.assert_close(one.couplings, whole.couplings)
