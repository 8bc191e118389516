"""Invalid and unusual values of arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    3,
    7,
    0.5,
    1.0,
    -0.5,
    1e-300,
    1e300,
    10**30,
    -(10**30),
    2**31,
    2**63,
    2**64,
)
NOT_FINITE: tuple[Any, ...] = (math.nan, math.inf, -math.inf, np.float32("nan"))
WRONG_TYPES: tuple[Any, ...] = (
    None,
    True,
    "",
    "5",
    "exact",
    "no such",
    "a\nb",
    b"bytes",
    (),
    [],
    {},
    (0.0, 1.0),
    [1, 2],
    {"a": 1},
    1 + 2j,
    object(),
    len,
    np.int64(3),
    np.float64(0.5),
    np.array([1.0, 2.0]),
    torch.tensor(1.0),
    torch.tensor([1, 2]),
    slice(None),
    range(3),
)
VALUES = (*NUMBERS, *NOT_FINITE, *WRONG_TYPES)

TENSORS: dict[str, Any] = {
    "integers": lambda *shape: torch.zeros(shape, dtype=torch.int64),
    "halves": lambda *shape: torch.zeros(shape, dtype=torch.float16),
    "bfloat16": lambda *shape: torch.zeros(shape, dtype=torch.bfloat16),
    "booleans": lambda *shape: torch.zeros(shape, dtype=torch.bool),
    "complex": lambda *shape: torch.zeros(shape, dtype=torch.complex64),
    "nan": lambda *shape: torch.full(shape, math.nan),
    "inf": lambda *shape: torch.full(shape, math.inf),
    "huge": lambda *shape: torch.full(shape, 3e38),
    "ones": lambda *shape: torch.ones(shape),
    "zeros": lambda *shape: torch.zeros(shape),
    "float64": lambda *shape: torch.zeros(shape, dtype=torch.float64),
    "sparse": lambda *shape: torch.zeros(shape).to_sparse(),
    "meta": lambda *shape: torch.zeros(shape, device="meta"),
    "numpy": lambda *shape: np.zeros(shape),
    "lists": lambda *shape: np.zeros(shape).tolist(),
    "one more axis": lambda *shape: torch.zeros(*shape, 1),
    "one axis fewer": lambda *shape: torch.zeros(shape[1:]),
    "one longer": lambda *shape: torch.zeros(*shape[:-1], (shape[-1] if shape else 0) + 1),
    "empty": lambda *shape: torch.zeros(*shape[:-1], 0),
    "no dimensions": lambda *shape: torch.zeros(()),
    "random": lambda *shape: torch.randn(shape),
}
"""What to put in place of a tensor of some shape."""
