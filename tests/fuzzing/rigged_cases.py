"""Cases that end in every way there is, for the workers of the fuzz to tell."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from diabat.ising import IsingError
from fuzz.outcome import Outcome, demand, judge

WAYS = ("answer", "wrong", "raw", "crash", "hang", "memory", "warning", "silent exit", "answer again")


def prepare() -> None:
    """Nothing to prepare."""


def run_case(seed: int, *, show: bool = False) -> Outcome:
    """The way of this number."""
    return judge(WAYS[seed], lambda: _end(WAYS[seed]))


def _end(way: str) -> None:
    if way == "wrong":
        demand(False, "probability: expected 0.5, got 0.7")
    elif way == "raw":
        raise IsingError("not raised by diabat, though of its type.")
    elif way == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif way == "hang":
        time.sleep(600)
    elif way == "memory":
        np.ones(2**30)
    elif way == "warning":
        np.float64(1e308) * 10
    elif way == "silent exit":
        os._exit(0)
