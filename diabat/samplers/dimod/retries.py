"""Try again after failures that pass by themselves, and only after those."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from diabat.samplers.dimod.budget import BudgetError
from diabat.samplers.dimod.secrets import safe_message

T = TypeVar("T")

# Class names anywhere among the bases, so that neither requests nor dwave.cloud needs to be imported.
TRANSIENT = frozenset(
    {
        "ConnectionError",  # Python's and that of requests
        "TimeoutError",
        "Timeout",  # requests: ConnectTimeout and ReadTimeout
        "ChunkedEncodingError",
        "RequestTimeout",  # dwave.cloud from here on
        "PollingTimeout",
        "SolverOfflineError",
        "InternalServerError",
        "ProblemUploadError",
    }
)
# Of these, those after which the problem may have been answered all the same.
_TIMEOUTS = frozenset({"TimeoutError", "Timeout", "RequestTimeout", "PollingTimeout"})
_LONGEST_WAIT_S = 60.0


class SubmissionError(RuntimeError):
    """A submission that failed; the message has no token, and no chained exception that could hold one."""


def is_transient(error: BaseException) -> bool:
    """Whether an exception tells of the network or a solver that is away, not of the problem."""
    return any(base.__name__ in TRANSIENT for base in type(error).__mro__)


def may_have_run(error: BaseException) -> bool:
    """Whether the solver may have run the problem, and counted its time, although nobody heard the answer."""
    return any(base.__name__ in _TIMEOUTS for base in type(error).__mro__)


def with_retries(call: Callable[[], T], *, retries: int, wait_s: float, what: str) -> T:
    """Call until it answers; wait ``wait_s`` · 2^k seconds, times 0.5 to 1.5, after transient failure k.

    Args:
        call: The submission.
        retries: Further attempts after a transient failure.
        wait_s: First wait, in seconds; no wait is longer than a minute.
        what: Subject of the message, such as "DWaveSampler".

    Raises:
        BudgetError: As the call raises it, at once.
        SubmissionError: After any other failure at once, and after the last attempt.
    """
    for attempt in range(retries + 1):
        try:
            return call()
        except BudgetError:
            raise
        except Exception as error:  # samplers raise what they like; all of it is told in one way
            if not is_transient(error):
                raise SubmissionError(f"sampler: {what} failed: {safe_message(error)}") from None
            if attempt == retries:
                raise SubmissionError(
                    f"sampler: {what} failed {attempt + 1} times in a row, the last time with {safe_message(error)}"
                ) from None
        # Jitter, so that several runs do not come back at the same moment; no result depends on it.
        time.sleep(min(wait_s * 2**attempt, _LONGEST_WAIT_S) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable: the last attempt returns or raises")
