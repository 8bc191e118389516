"""What a computation asks of a device: kernels, copies, numbers that the host reads, and the largest result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Memory without values, tensors under another name, numbers for a kernel; all views are told by their schema.
NO_KERNEL = (
    *("empty", "empty_like", "new_empty", "empty_strided", "lift_fresh", "detach", "_unsafe_view"),
    *("promote_types", "scalar_tensor"),
)
READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2")


class Counted(TorchDispatchMode):
    """Counts kernels, copies between host and device, and reads of numbers; finds the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.crossings = self.largest = 0
        self.reads: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = op(*args, **(kwargs or {}))
        name = op.overloadpacket.__name__
        made = [t for t in (found if isinstance(found, tuple | list) else [found]) if isinstance(t, Tensor)]
        picks = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or picks:
            self.reads.append(name)
        if name in ("_to_copy", "copy_"):
            self.crossings += len({t.device for t in (*args, *made) if isinstance(t, Tensor)}) > 1
        renames = any(a.alias_info is not None and not a.alias_info.is_write for a in op._schema.arguments)
        if not renames and name not in NO_KERNEL:
            self.kernels += 1
            self.largest = max([self.largest, *(t.numel() for t in made)])
        return found
