"""Calibration of attention maps against a loop over its equations in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.heads import Calibration, ColumnSums, calibrate
from diabat.heads.calibration import mathematics as module


def causal(batch: int, length: int, padding: list[int], window: int | None = None) -> Tensor:
    """Which keys a row sees behind left padding, bool [B, 1, T, T]."""
    row, key = torch.arange(length)[:, None], torch.arange(length)
    seen = (key <= row) & (key > row - (window or length))
    return torch.stack([seen & (key >= p) for p in padding]).unsqueeze(1)


def maps(visible: Tensor, heads: int = 3, scale: float = 2.0) -> Tensor:
    """Random attention [B, H, T, T], uniform over all keys in rows that see none, as eager attention has it."""
    scores = scale * torch.randn(visible.shape[0], heads, *visible.shape[2:], dtype=torch.float64)
    return scores.masked_fill(~visible, torch.finfo(torch.float64).min).softmax(-1)


def naive(A: Tensor, visible: Tensor, setting: Calibration) -> Tensor:
    """Equations (9) to (12) for one map [T, T], element by element."""
    length = len(A)
    real = [bool(visible[k, k]) for k in range(length)]
    start = real.index(True)
    result = A.clone()
    for k in range(length):
        if not real[k]:
            continue
        sees = [t for t in range(length) if visible[k, t]]
        last = k if setting.rows == "running" else length - 1
        focused = []
        for t in sees:
            column = [float(A[r, t]) for r in range(last + 1) if real[r] and visible[r, t]]
            if t != start and sum(column) / len(column) > setting.alpha:
                focused.append(t)
        others = [t for t in sees if t not in focused]
        moved = sum((1 - setting.beta) * float(A[k, s]) for s in focused)
        whole = sum(float(A[k, t]) for t in others)
        if not others:
            continue
        for s in focused:
            result[k, s] = setting.beta * A[k, s]
        for t in others:
            share = float(A[k, t]) / whole if setting.redistribution == "proportional" else 1 / len(others)
            result[k, t] = A[k, t] + moved * share
    return result


SETTINGS = [
    Calibration({0: ()}, alpha=alpha, beta=beta, rows=rows, redistribution=how)
    for alpha, beta in ((0.1, 0.1), (0.3, 0.5), (0.0, 0.0))
    for rows in module.ROWS
    for how in module.REDISTRIBUTIONS
]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_equals_a_loop_over_the_equations(setting: Calibration, window: int | None) -> None:
    visible = causal(2, 9, [0, 3], window)
    A = maps(visible)
    found, _ = calibrate(A, visible, setting)
    for b, h in itertools.product(range(2), range(3)):
        torch.testing.assert_close(found[b, h], naive(A[b, h], visible[b, 0], setting), rtol=0, atol=1e-14)
    assert found.sum(-1).sub(1).abs().max() < 1e-14


@given(
    cuts=st.lists(st.integers(1, 10), max_size=4, unique=True),
    padding=st.integers(0, 4),
    window=st.sampled_from([None, 1, 3, 5]),
    how=st.sampled_from(module.REDISTRIBUTIONS),
)
def test_running_rows_in_pieces(cuts: list[int], padding: int, window: int | None, how: str) -> None:
    """With a window, a piece is given the keys that its rows can see, as a sliding cache does."""
    length = 11
    visible = causal(2, length, [0, padding], window)
    A = maps(visible)
    setting = Calibration({0: ()}, redistribution=how)
    whole, _ = calibrate(A, visible, setting)
    past: ColumnSums | None = None
    at = [0, *sorted(cuts), length]
    for start, stop in itertools.pairwise(at):
        left = 0 if window is None else max(0, start - window + 1)
        if past is not None:
            past = past.last(start - left)
        part = (..., slice(start, stop), slice(left, stop))
        piece, past = calibrate(A[part], visible[part], setting, past)
        torch.testing.assert_close(piece, whole[part], rtol=0, atol=1e-14)


def test_the_first_token_of_every_document_of_a_packed_batch_is_exempt() -> None:
    visible = causal(1, 10, [0])
    visible[:, :, 6:, :6] = False
    A = maps(visible)
    setting = Calibration({0: ()}, alpha=0.0)
    found, sums = calibrate(A, visible, setting)
    assert sums.first[0, 0].nonzero().flatten().tolist() == [0, 6]
    for part in (slice(0, 6), slice(6, 10)):
        alone, _ = calibrate(A[..., part, part], visible[..., part, part], setting)
        torch.testing.assert_close(found[..., part, part], alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("setting", "real", "padded", "tolerance"), [
    (SETTINGS[0], slice(3, 9), slice(0, 3), 0),
    *((setting, slice(0, 6), slice(6, 9), 1e-15) for setting in SETTINGS[:4]),
])  # fmt: skip
def test_padding_stays_as_it_is(setting: Calibration, real: slice, padded: slice, tolerance: float) -> None:
    """On the right its rows see the tokens before them, but not themselves."""
    visible = causal(1, 9, [real.start])
    visible[..., real.stop :] = False
    A = maps(visible)
    found, sums = calibrate(A, visible, setting)
    assert torch.equal(found[:, :, padded], A[:, :, padded])
    alone, apart = calibrate(A[..., real, real], visible[..., real, real], setting)
    torch.testing.assert_close(found[..., real, real], alone, rtol=0, atol=tolerance)
    torch.testing.assert_close(sums.total[..., real], apart.total, rtol=0, atol=tolerance)
    assert not sums.total[..., padded].any()


@pytest.mark.parametrize("rows", ["running", "prompt"])
def test_a_column_at_the_limit_is_not_focused(rows: str) -> None:
    """Nor any with an alpha of 1; a beta of 1 changes none."""
    A = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.5, 0.25]], dtype=torch.float64)[None, None]
    for alpha, beta, changes in ((0.5, 0.1, False), (0.499, 0.1, True), (1, 0.1, False), (0, 1, False)):
        found, _ = calibrate(A, causal(1, 3, [0]), Calibration({0: []}, alpha, beta, rows))
        assert torch.equal(found, A) != changes


def test_a_row_with_nobody_to_give_to_stays() -> None:
    """A window of two tokens that are both focused; others without weight, and with the least that counts."""
    visible = causal(1, 6, [0], window=2)
    A = maps(visible)
    for how in module.REDISTRIBUTIONS:
        found, _ = calibrate(A, visible, Calibration({0: ()}, alpha=0.0, redistribution=how))
        assert torch.equal(found[:, :, 2:], A[:, :, 2:])
    tiny = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [1e-44, 0.3, 0.7, 0], [2e-38, 0.3, 0.6, 0.1]])
    seen = torch.ones(4, 4, dtype=torch.bool).tril().view(1, 1, 4, 4)
    found, _ = calibrate(tiny.view(1, 1, 4, 4), seen, Calibration({0: ()}, alpha=0.05))
    assert torch.equal(found[0, 0, 1:3], tiny[1:3])
    torch.testing.assert_close(found[0, 0, 3], torch.tensor([0.9, 0.03, 0.06, 0.01]))


def test_half_precision_is_summed_in_float32() -> None:
    visible = causal(1, 300, [0])
    A = maps(visible).bfloat16()
    found, sums = calibrate(A, visible, SETTINGS[0])
    assert found.dtype == torch.bfloat16
    assert sums.total.dtype == torch.float32
    expected, _ = calibrate(A.double(), visible, SETTINGS[0])
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-9)


def test_gradients_pass() -> None:
    visible = causal(1, 5, [1])
    scores = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    setting = Calibration({0: ()})

    def weigh(scores: Tensor) -> Tensor:
        A = scores.masked_fill(~visible, torch.finfo(torch.float64).min).softmax(-1)
        return calibrate(A, visible, setting)[0]

    assert torch.autograd.gradcheck(weigh, scores)
    _, sums = calibrate(scores.softmax(-1), visible, setting)
    assert not sums.total.requires_grad  # a cache that holds them would hold all passes


def test_sums_that_do_not_fit_are_refused() -> None:
    visible = causal(1, 6, [0])
    _, sums = calibrate(maps(visible), visible, SETTINGS[0])
    with pytest.raises(ArgumentError, match=r"past: expected sums of 3 columns, got 6\."):
        calibrate(maps(visible)[:, :, 3:], visible[:, :, 3:], SETTINGS[0], sums)
    with pytest.raises(ArgumentError, match=r"columns: expected at most 6, got 7\."):
        sums.last(7)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"salient": {}}, r"salient: expected a mapping of at least one layer .*, got \{\}"),
    ({"salient": [0]}, r"salient: expected a mapping of at least one layer .*, got \[0\]"),
    ({"salient": {"0": [1]}}, r"salient: expected an integer >= 0, got '0'"),
    ({"salient": {0: 3}}, r"salient: expected the heads of layer 0 as a list, got 3"),
    ({"salient": {0: b"\x01"}}, r"salient: expected the heads of layer 0 as a list, got b'"),
    ({"salient": {0: torch.tensor(1)}}, r"salient: expected the heads of layer 0 as a list, got tensor"),
    ({"salient": {0: np.array(1)}}, r"salient: expected the heads of layer 0 as a list, got array"),
    ({"salient": {0: [-1]}}, r"salient: expected an integer >= 0, got -1"),
    ({"salient": {0: [1, 1]}}, r"salient: expected every head of layer 0 once, got \[1, 1\]"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=[str(options) for options, _ in REFUSED])
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        Calibration(**{"salient": {0: ()}, **options})


def test_a_calibration_survives_its_dictionary() -> None:
    setting = Calibration({7: [2, 1], 10: {0}}, 0.05, 0.3, "prompt", "uniform")
    content = setting.as_dict()
    assert content["salient"] == {"7": [1, 2], "10": [0]}
    assert Calibration.from_dict(content) == setting
    with pytest.raises(ArgumentError, match="calibration: expected the keys alpha, beta"):
        Calibration.from_dict({**content, "gamma": 1})
    with pytest.raises(ArgumentError, match="salient: expected an integer >= 0, got '07'"):
        Calibration.from_dict({**content, "salient": {"07": []}})
