"""What the package refuses, each with one sentence that names the argument."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from layers import answer, attention, tokens

import diabat
from diabat import BoltzmannAttention, BoltzmannMultiheadAttention, NeuroGameAttention, UnsupportedError
from diabat.attention import CouplingInit, WindowCouplings, boltzmann_attention, games
from diabat.attention.estimators import covariance
from diabat.ising import IsingError
from diabat.samplers.banded import BandedSampler
from diabat.testing import ReferenceSampler

Row = tuple[Callable[[], Any], type[Exception], str]
NAN, INT64, BOOL = float("nan"), torch.int64, torch.bool


class Three(ReferenceSampler):
    @property
    def capabilities(self) -> Any:
        return replace(super().capabilities, max_spins=3)


def options_of(
    make: Callable[..., Any], *rows: tuple[dict[str, Any], Any, str] | tuple[dict[str, Any], str]
) -> Iterator[Row]:
    """Rows of options of one callable: (options, sentence) for a ValueError, else (options, error, sentence)."""
    for options, *kind, sentence in rows:
        yield partial(make, **options), kind[0] if kind else ValueError, sentence


# What any layer refuses, with the layers that have the option.
SHARED: list[tuple[str, dict[str, Any], Any, str]] = [
    ("all", {"dim": 7}, ValueError, "embed_dim: expected a multiple of num_heads = 2, got 7"),
    ("attention neurogame", {"dim": 0}, ValueError, "embed_dim: expected an integer >= 1, got 0"),
    ("attention neurogame", {"heads": True}, ValueError, "num_heads: expected an integer >= 1, got True"),
    ("attention multihead", {"window": 0}, ValueError, "window: expected an integer >= 1, got 0"),
    ("attention multihead", {"mode": "h+j"}, ValueError,
     r"mode: expected one of softmax, h\+J, .*, got 'h\+j'\. Did you mean 'h\+J'\?"),
    ("multihead", {"mode": "J-self"}, ValueError, r"mode: expected one of softmax, .*K, got 'J-self'"),
    ("attention", {"sampler": "exat"}, ValueError, r".*Did you mean 'exact'\?"),
    ("attention neurogame", {"sampler": 3}, TypeError, "sampler: expected a diabat Sampler or its name, got int"),
    ("attention", {"gradient": "adjont"}, UnsupportedError, "gradient: expected auto, .*, adjoint, got 'adjont'"),
    ("attention multihead", {"gradient": "adjoint"}, UnsupportedError,
     "gradient: sampler 'exact' supports exact, .*, got 'adjoint'"),
    ("attention", {"sampler": "mean_field", "gradient": "covariance"}, UnsupportedError,
     ".*sampler 'mean_field' supports exact, "),
    ("attention", {"sampler": "dqa", "mode": "h+J+K"}, UnsupportedError,
     "mode: sampler 'dqa' does not support three-body terms"),
    ("attention", {"sampler": "dqa", "window": 40}, UnsupportedError,
     "window: sampler 'dqa' accepts at most .* spins, got 40"),
    ("attention multihead", {"window": 60}, UnsupportedError,
     "window: sampler 'exact' accepts at most .* spins, got 60"),
    ("attention", {"num_reads": 0}, ValueError, "num_reads: expected an integer >= 1, got 0"),
    ("multihead", {"num_reads": 5}, ValueError, "num_reads: gradient 'exact' differentiates"),
    ("attention", {"dropout": 1.5}, ValueError, "dropout"),
    ("attention", {"causal": "no"}, ValueError, "causal: expected True or False, got 'no'"),
    ("attention multihead", {"bandwidth": 0}, ValueError, r"bandwidth: expected an integer >= 1 or None, got 0\.$"),
    ("attention", {"window": 64, "bandwidth": 4, "sampler": BandedSampler(bandwidth=3)}, UnsupportedError,
     r"bandwidth: expected at least 4, the range of the couplings, got sampler 'banded' with 3\.$"),
    ("attention", {"window": 64, "sampler": "banded"}, UnsupportedError,
     ".*bandwidth of 63 with 64 spins .* give a smaller bandwidth"),
    ("multihead", {"add_bias_kv": True}, ValueError,
     "add_bias_kv: expected False, since couplings are between keys, got True"),
    ("multihead", {"add_zero_attn": True}, ValueError, "add_zero_attn: expected False"),
    ("neurogame", {"num_coalitions": 0}, ValueError, "num_coalitions: expected an integer >= 1, got 0"),
    ("neurogame", {"eval_coalitions": 2.0}, ValueError, "eval_coalitions: expected an integer >= 1, got 2.0"),
    ("neurogame", {"temperature": 0.0}, ValueError, "temperature: expected a positive finite number, got 0.0"),
    ("neurogame", {"weighting": "boltzmann"}, ValueError,
     "weighting: expected one of gibbs, uniform, got 'boltzmann'"),
    ("neurogame", {"f": "gelu"}, ValueError, "f: expected one of identity, relu, tanh, got 'gelu'"),
    ("neurogame", {"normalisation": "l2"}, ValueError, "normalisation: expected one of l1, sum, none, got 'l2'"),
    ("neurogame", {"mode": "J"}, ValueError, r"mode: expected one of h\+J, h, uniform, got 'J'"),
    ("neurogame", {"output": "mean"}, ValueError, "output: expected one of pooled, tokens, got 'mean'"),
    ("neurogame", {"eval_seed": -1}, ValueError, ".*seed: expected an integer between 0"),
    ("neurogame", {"gradient": "adjoint"}, UnsupportedError, "gradient: sampler 'mean_field' supports"),
    ("neurogame", {"num_reads": 10}, UnsupportedError, "num_reads: gradient 'exact' differentiates"),
]  # fmt: skip
KINDS = ("attention", "multihead", "neurogame")


def layer(kind: str, dim: int = 8, heads: int = 2, window: int = 4, **options: Any) -> Any:
    if kind == "neurogame":
        return NeuroGameAttention(dim, heads, **options)
    if kind == "multihead":
        return BoltzmannMultiheadAttention(dim, heads, window=window, batch_first=True, **options)
    return BoltzmannAttention(dim, heads, window, **options)


def relative(**options: Any) -> Any:
    return BoltzmannAttention(**{"embed_dim": 8, "num_heads": 2, "window": 4, "relative": True} | options)


Q = torch.zeros(3, 2, 5, 4)
NESTED = (
    r"expected a dense tensor with a mask of padding, got a nested one; use \.to_padded_tensor\(0\.0\)\.$"
)


def called(**given: Any) -> Any:
    return boltzmann_attention(**{"query": Q, "key": Q, "value": Q} | given)


LAYOUTS: list[Row] = [
    *options_of(
        relative,
        ({"causal": False}, "relative: expected causal=True, since windows end at the query, got causal=False"),
        ({"relative": 1}, "relative: expected True or False, got 1"),
        ({"far": "all"}, "far: expected one of none, independent, got 'all'"),
        ({"relative": False, "far": "independent"},
         "far: expected 'none' unless windows move .relative=True., got 'independent'"),
        ({"readout": "odds", "mode": "J-self"},
         "readout: expected 'probability' in mode 'J-self', .* got 'odds'"),
        ({"rotary": True, "embed_dim": 6}, "rotary: expected an even embed_dim / num_heads, got 6 / 2"),
        ({"offset_bias": 1}, "offset_bias: expected True or False, got 1"),
        ({"relative": False, "offset_bias": True}, "offset_bias: expected False without relative=True, got True"),
        ({"mode": "J+K", "offset_bias": True},
         "offset_bias: expected a mode with fields, got True in mode 'J.K'"),
        ({"coupling": 0.5}, TypeError,
         r"options: expected some of sampler, gradient, .*, got 'coupling'\. Did you mean 'coupling_init'\?"),
        ({"couplings": "tokens"}, TypeError, "options: expected some of sampler, gradient, .*, got 'couplings'"),
        ({"softcap": 0.0}, "softcap: expected a positive finite number, got 0.0"),
        ({"scale": math.inf}, r"scale: expected a number in \(-inf, inf\) or None, got inf"),
    ),
    *options_of(
        partial(WindowCouplings, 2, 4),
        ({"terms": "L"}, "terms: expected J, K, J\\+K or an empty text, got 'L'"),
        ({"offset_bias": True, "relative": False}, "offset_bias: expected"),
    ),
    *options_of(
        CouplingInit,
        ({"mean": NAN}, "mean: expected a number in"),
        ({"std": -1.0}, "std: expected a number in"),
        ({"max_distance": 0}, "max_distance: expected an integer >= 1 or None, got 0"),
    ),
    *(
        row
        for make in (
            relative, lambda **options: relative(mode="h", **options),
            lambda **options: BoltzmannMultiheadAttention(8, 2, window=4, **options),
        )
        for row in options_of(
            make,
            ({"coupling_init": "zeros"}, TypeError,
             r"coupling_init: expected a CouplingInit, a number or None, got str\.$"),
            ({"coupling_init": NAN}, "mean: expected a number in"),
        )
    ),
    *(
        row
        for gradient in ("straight_through", "covariance", "exact")
        for row in options_of(
            lambda gradient: layer("attention", gradient=gradient, sampler=diabat.sampler(
                "dqa", schedule="boltzmann-4", learn_schedule=True)),
            ({"gradient": gradient}, UnsupportedError,
             f"gradient: sampler 'dqa' supports adjoint, got '{gradient}'"),
        )
    ),
]  # fmt: skip

CALLED: list[Row] = [
    *(
        row
        for name in ("query", "key", "value")
        for row in options_of(
            called,
            ({name: [[0.0]]}, f"{name}: expected a torch.Tensor, got list"),
            ({name: Q.long()}, f"{name}: expected a floating dtype, got torch.int64"),
            ({name: torch.nested.nested_tensor([Q[0, 0]], layout=torch.jagged)},
             f"{name}: {NESTED}"),
        )
    ),
    *options_of(
        called,
        ({"key": Q.double()}, "key: expected dtype torch.float32 as the query, got torch.float64"),
        ({"value": Q.to("meta")}, "value: expected a tensor on cpu as the query, got one on meta"),
        ({"query": Q[0, 0, 0]}, r"query: expected \[\*, H, L, E\] as the query has, got \[4\]"),
        ({"key": Q[0], "value": Q[0]}, r"key: expected \[\*, H, L, E\] as the query has, got \[2, 5, 4\]"),
        ({"key": Q[:2], "value": Q[:2]}, r"key: expected \[\*, H, S, E\] of the batch of queries, .* \[2, 2, 5, 4\]"),
        ({"value": Q[:, :, :4]}, r"key: expected .* and values alike, got \[3, 2, 5, 4\], .* and \[3, 2, 4, 4\]"),
        ({"key": Q[..., :3]}, "key: expected 4 features as queries have, at least 1, got 3"),
        ({"query": Q[..., :0], "key": Q[..., :0]}, "key: expected 0 features as queries have, at least 1, got 0"),
        ({"key": Q[:, :1], "value": Q[:, :1]},
         "key: expected 2 heads as the query has without enable_gqa=True, got 1"),
        ({"query": Q[:, :1], "enable_gqa": True}, "key: expected 1 heads as the query has, got 2"),
        ({"attn_mask": torch.ones(5, 5) > 0, "is_causal": True},
         "is_causal: expected False together with attn_mask, got True"),
        ({"attn_mask": [[True] * 5]}, "attn_mask: expected a bool or floating tensor, got list"),
        ({"attn_mask": torch.ones(5, 5).int()}, "attn_mask: expected a bool or floating tensor, got torch.int32"),
        *(({"attn_mask": torch.ones(shape)}, r"attn_mask: expected a shape that broadcasts to \[3, 2, 5, 5\], got")
          for shape in ((5, 4), (2, 5, 5, 5), (1, 3, 2, 5, 5))),
        ({"dropout_p": 1.5}, r"dropout_p: expected a number in \[0, 1\], got 1.5"),
        ({"far": "all"}, "far: expected one of none, independent, got 'all'"),
        ({"softcap": 0.0}, "softcap: expected a positive finite number, got 0.0"),
        ({"scale": NAN}, r"scale: expected a number in \(-inf, inf\) or None, got nan"),
        ({"couplings": 0.5}, TypeError, "couplings: expected WindowCouplings or None, got float"),
        ({"couplings": torch.ones(5, 5) > 0}, TypeError,
         "couplings: expected WindowCouplings or None, got Tensor; a mask goes to attn_mask="),
        ({"couplings": WindowCouplings(3, 4)}, "couplings: expected those of 2 heads as the queries have, got 3"),
        ({"couplings": WindowCouplings(2, 4, relative=False)},
         "key: expected at most window = 4 positions, got 5; WindowCouplings with relative=True"),
        ({"couplings": WindowCouplings(2, 5, relative=False), "far": "independent"},
         "far: expected 'none' unless windows move .relative=True., got 'independent'"),
        *(({"couplings": WindowCouplings(2, 64, **options)}, UnsupportedError,
           f"window: sampler 'exact' accepts at most .* spins, got 64; {fix}")
          for options, fix in (
              ({}, "use 'mean_field' or 'tempering', or a smaller window"),
              ({"bandwidth": 2}, "use 'banded' or 'mean_field' or 'tempering', or a smaller window"))),
        ({"couplings": WindowCouplings(2, 4), "sampler": "exat"}, r"sampler: .*Did you mean 'exact'\?"),
        ({"sampler": "exat"}, r"sampler: .*Did you mean 'exact'\?"),
    ),
]  # fmt: skip

X = torch.zeros(3, 5, 8)
TOKENS: list[tuple[Any, str]] = [
    ([[[0.0] * 8] * 3], "expected a torch.Tensor, got list"),
    (torch.zeros(1, 3, 8, dtype=INT64), "expected a floating dtype, got torch.int64"),
    (torch.zeros(1, 3, 8).to_sparse(), "expected a dense tensor, got the layout torch.sparse_coo"),
    (torch.zeros(1, 3, 8).double(), "expected dtype torch.float32 as the layer, got torch.float64"),
    (torch.zeros(1, 3, 8, device="meta"), "expected a tensor on cpu as the layer, got one on meta"),
]
SHAPES: list[Row] = [
    *(
        (lambda made=made, layout=layout: made(torch.nested.nested_tensor([X[0], X[0, :2]], layout=layout)),
         ValueError, f"x: {NESTED}")
        for made in (layer("attention", window=5), layer("neurogame"), relative().prefill, relative().step)
        for layout in (torch.strided, torch.jagged)
    ),
    *(
        (lambda kind=kind, shape=shape: layer(kind, window=5)(torch.zeros(shape)), ValueError,
         rf"x: expected shape \[B, T, 8\] with B, T >= 1, got {re.escape(str(list(shape)))}")
        for kind in ("attention", "neurogame")
        for shape in ((5, 8), (2, 5, 7), (0, 5, 8), (2, 0, 8))
    ),
    (lambda: layer("attention", window=5)(torch.zeros(2, 6, 8)), ValueError,
     "x: expected at most window = 5 positions, got 6; relative=True takes any number"),
    *(
        (lambda kind=kind, mask=mask: layer(kind, window=5)(X, mask), ValueError,
         rf"key_padding_mask: expected bool \[3, 5\], got {re.escape(str(mask.dtype))} ")
        for kind in ("attention", "neurogame")
        for mask in (torch.zeros(3, 5), torch.zeros(3, 4, dtype=BOOL), torch.zeros(5, dtype=BOOL))
    ),
    *options_of(
        lambda **change: layer("multihead", window=6)(**{"query": X, "key": X, "value": X} | change),
        ({"query": torch.zeros(8)}, r"query: expected \[L, B, E\].* got \[8\]"),
        ({"query": X[..., :3]}, r"query: expected .* with 8 features.* got \[3, 5, 3\]"),
        ({"query": X[:2]}, "key: expected a batch of 2 as the queries, got 3"),
        ({"key": X[0]}, r"key: expected 3 dimensions .* got \[5, 8\]"),
        ({"key": X[:, :0]}, r"key: .* none of them empty, got \[3, 0, 8\]"),
        ({"value": X[:, :4]}, r"value: expected the positions of the keys, \[3, 5\], got \[3, 4\]"),
        ({"key": torch.zeros(3, 7, 8), "value": torch.zeros(3, 7, 8)},
         "key: expected at most window = 6 positions, got 7; diabat.BoltzmannAttention with relative=True"),
        ({"attn_mask": torch.zeros(5, 4)}, r"attn_mask: expected shape \[5, 5\] or \[6, 5, 5\], got \[5, 4\]"),
        ({"attn_mask": torch.zeros(5, 5).int()}, "attn_mask: expected dtype bool or float, got torch.int32"),
        ({"key_padding_mask": torch.zeros(5)}, r"key_padding_mask: expected shape \[3, 5\], got \[5\]"),
    ),
    (lambda: layer("neurogame")(X, seed=-3), ValueError, "seed: expected an integer between 0"),
    (lambda: layer("neurogame", sampler=Three())(X), UnsupportedError,
     "x: sampler 'reference' accepts at most 3 tokens, got 5"),
]  # fmt: skip


def stepped(x: Any, state: Any = None, **options: Any) -> Any:
    return attention(relative=True, dtype=torch.float32, **options).step(x, state)


def prefilled(**options: Any) -> Any:
    return attention(dtype=torch.float32, **{"relative": True} | options).prefill(torch.zeros(2, 3, 8))[1]


STEPS: list[Row] = [
    *(
        (call, ValueError, "relative: expected True to decode token by token, got False")
        for call in (lambda: layer("attention").step(X[:, 0]), lambda: layer("attention").prefill(X[:, :4]))
    ),
    (lambda: stepped(X[:2, :3], prefilled()), ValueError,
     r"x: expected one token of every sequence, \[B, 8\], got \[2, 3, 8\]"),
    (lambda: stepped(X[:1, 0], prefilled()), ValueError,
     r"state: expected keys \[1, 2, S, 4\] .* got \[2, 2, 3, 4\]"),
    (lambda: stepped(X[:, 0], {}), TypeError, "state: expected a DecodingState or None, got dict"),
    (lambda: prefilled().reorder(torch.zeros(2)), ValueError,
     r"rows: expected int64 \[B\], got torch.float32 \[2\]"),
]  # fmt: skip


def cubic() -> None:
    layer("attention", mode="h+K").sampler = "banded"


def integer() -> None:
    layer("attention").sampler = 3


def game() -> games.NormGame:
    return games.NormGame(tokens(1, 4, 3))


SAMPLED = (games.sample_shapley, games.sample_banzhaf, games.sample_interaction)
CALLS: list[Row] = [
    (cubic, UnsupportedError, "mode: sampler 'banded' does not support three-body terms"),
    (integer, TypeError, "sampler: expected a diabat Sampler or its name, got int"),
    (lambda: covariance(torch.ones(3), torch.ones(1, 3).to(torch.int8), torch.ones(3, dtype=BOOL),
                        couplings=True, three_body=False),
     ValueError, "num_reads: the covariance estimator expects at least 2 reads, got 1"),
    *options_of(
        lambda **given: diabat.spin_probabilities(
            **{"fields": torch.zeros(2, 3, requires_grad=True), "couplings": None, "sampler": "exact"} | given
        ).sum().backward(),
        ({"gradient": "reinforce"}, UnsupportedError,
         "gradient: expected auto, exact, .*, adjoint, got 'reinforce'"),
        ({"fields": torch.tensor([NAN])}, IsingError, "fields: expected finite values"),
        ({"sampler": None}, TypeError, "sampler: expected a diabat Sampler or its name, got NoneType"),
        ({"gradient": "covariance", "num_reads": 1}, ".*expects at least 2 reads, got 1"),
        *(
            ({"gradient": name, "num_reads": 0}, "num_reads: expected an integer >= 1, got 0")
            for name in ("exact", "straight_through", "linear_response", "covariance")
        ),
    ),
    *options_of(
        games.NormGame,
        ({"vectors": torch.zeros(3, 2, dtype=INT64)}, TypeError, "vectors: expected a floating"),
        ({"vectors": torch.zeros(3)}, r"vectors: expected shape \[\*batch, n, d\]"),
        ({"vectors": torch.zeros(3, 2), "f": "sin"}, "f: expected one of identity, relu, tanh"),
        ({"vectors": torch.zeros(3, 2), "players": torch.ones(4, dtype=BOOL)},
         r"players: expected a shape that broadcasts to \[3\], got \[4\]"),
        ({"vectors": torch.zeros(3, 2), "players": torch.ones(3)}, "players: expected a bool"),
        *(
            ({"vectors": torch.tensor([[[1.0], [value]]])},
             "vectors: expected vectors V_i small enough to be squared")
            for value in (NAN, float("inf"), 1e30)
        ),
    ),
    (lambda: games.NormGame(torch.zeros(21, 2)).table(), ValueError, "vectors: expected at most 20 players"),
    (lambda: games.FunctionGame(3, 2), TypeError, "value: expected a function of masks, got int"),
    (lambda: games.FunctionGame(len, 0), ValueError, "num_players: expected an integer >= 1, got 0"),
    (lambda: games.mobius(torch.zeros(6)), ValueError, r"table: expected shape \[..., 2\^n\], got \[6\]"),
    (lambda: games.mobius(torch.zeros(8, dtype=INT64)), TypeError, "table: expected a floating tensor"),
    (lambda: games.shapley([0.0, 1.0]), TypeError, "table: expected a floating tensor, got list"),
    (lambda: games.shapley(torch.zeros(1 << 21)), ValueError, "table: expected at most 20 players, got 21"),
    (lambda: games.k_sii(torch.zeros(8), 4), ValueError, "order: expected an integer in 1 .. 3, got 4"),
    (lambda: games.all_coalitions(21), ValueError, "n: expected an integer in 0 .. 20, got 21"),
    (lambda: games.gibbs_marginal(torch.zeros(8), 0.0), ValueError, "temperature: expected a positive finite"),
    (lambda: games.gibbs_marginal(torch.zeros(2, 8), torch.tensor([1.0, -1.0])), ValueError,
     "temperature: expected positive finite numbers, got a smallest of -1"),
    (lambda: games.value_table(lambda m: m.sum(-1), 3), TypeError, "value: expected a function that returns"),
    (lambda: games.value_table(lambda m: m.sum().float(), 3), ValueError,
     r"value: expected values \[..., 8\] of 8 coalitions, got \[\]"),
    *(
        row
        for sampled in SAMPLED
        for row in options_of(
            lambda sampled=sampled, **given: sampled(game(), **{"num_samples": 4} | given),
            ({"num_samples": 0}, "num_samples: expected an integer >= 1, got 0"),
            ({"num_samples": 3, "antithetic": True}, "num_samples: expected an even number with antithetic"),
            ({"weighting": "gips"}, "weighting: expected one of uniform, gibbs, got 'gips'"),
            ({"weighting": "gibbs", "temperature": -1.0}, "temperature: expected a positive finite number"),
            ({"seed": -1}, "seed: expected an integer between 0"),
        )
    ),
    (lambda: games.sample_interaction(game(), 4, index="myerson"), ValueError,
     "index: expected one of banzhaf, shapley, got 'myerson'"),
    (lambda: games.sample_interaction(game(), 4, stratified=True), ValueError,
     "stratified: expected False with index='banzhaf'"),
]  # fmt: skip
ROWS: list[Row] = [
    *(
        (lambda kind=kind, options=options: layer(kind, **options), error, sentence)
        for kinds, options, error, sentence in SHARED
        for kind in (KINDS if kinds == "all" else kinds.split())
    ),
    *LAYOUTS,
    *CALLED,
    *(
        (lambda kind=kind, x=x: answer(layer(kind, heads=1, window=3), x), ValueError,
         f"{'query' if kind == 'multihead' else 'x'}: {told}")
        for kind in KINDS
        for x, told in TOKENS
    ),
    *SHAPES,
    *STEPS,
    *CALLS,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize(("call", "kind", "sentence"), ROWS, ids=range(len(ROWS)))
def test_it_is_refused_in_one_sentence(call: Callable[[], Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=f"^{sentence}"):
        call()


def test_vectors_of_padding_may_have_any_size() -> None:
    vectors = torch.ones(2, 3, 4)
    vectors[1, 2, 0] = NAN
    players = torch.tensor([True, True, False])
    assert games.NormGame(vectors, players=players).table().isfinite().all()


def test_padding_does_not_count_towards_the_largest_number_of_tokens() -> None:
    pad = torch.arange(6)[None] >= 1
    assert layer("neurogame", sampler=Three())(torch.zeros(1, 6, 8), pad).shape == (1, 8)
