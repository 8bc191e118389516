"""``diabat backends`` and ``diabat warm-up``: list the available backends, and compile their kernels ahead."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

from diabat.cli import arguments
from diabat.cli.output import print_json, print_table, say
from diabat.extras import install_command

# Extra -> modules that show it is installed, and what it is for.
EXTRAS = {
    "hf": (("transformers", "peft", "accelerate"), "Hugging Face models"),
    "dwave": (("dwave.system", "dwave.samplers"), "D-Wave hardware and samplers"),
    "cluster": (("dask", "distributed"), "work spread over machines"),
    "stats": (("pandas",), "samples and moments as pandas tables"),
    "bench": (("dwave.samplers", "openjij", "shapiq"), "peers in the benchmarks"),
}


def show_backends(as_json: arguments.JsonOption = False) -> None:
    """List the sampling backends, their limits, and the optional extras."""
    backends, extras = backend_rows(), extra_rows()
    if as_json:
        print_json({"backends": backends, "extras": extras})
        return
    columns = ("backend", "law", "largest n", "offers", "gradients, best first")
    print_table("Backends", columns, (_backend_cells(row) for row in backends))
    say("At default options: dimod wraps an annealer held at beta = 1, refine and distributed wrap dqa.\n")
    for row in backends:
        if row["reason"]:
            say(f"{row['backend']} is not available: {row['reason']}\n")
    cells = ((r["extra"], r["purpose"], "installed" if r["installed"] else r["install"]) for r in extras)
    print_table("Extras", ("extra", "for", "state"), cells)


def backend_rows() -> list[dict[str, Any]]:
    """One row per backend, with its capabilities at default options or the reason why it cannot be built."""
    from diabat.samplers.registry import available_backends, sampler

    rows = []
    for name in available_backends():
        row: dict[str, Any] = {"backend": name, "available": True, "reason": None}
        try:
            row |= dataclasses.asdict(sampler(name).capabilities)
        except Exception as error:  # a third-party backend may fail in any way; the others are still listed
            row |= {"available": False, "reason": " ".join(f"{type(error).__name__}: {error}".split())}
        rows.append(row)
    return rows


def extra_rows() -> list[dict[str, Any]]:
    """One row per optional extra; no package is imported."""
    rows = []
    for extra, (modules, purpose) in EXTRAS.items():
        missing = [module for module in modules if not _is_installed(module)]
        row = {"extra": extra, "purpose": purpose, "installed": not missing, "missing": missing}
        rows.append(row | {"install": install_command(extra)})
    return rows


def _backend_cells(row: dict[str, Any]) -> tuple[str, ...]:
    if not row["available"]:
        return (row["backend"], "not available", "", "", "")
    names = {"exact": "exact moments", "log_partition": "log Z", "three_body": "three-body terms"}
    offered = ("exact", "samples", "correlations", "log_partition", "three_body", "edges")
    offers = ", ".join(names.get(key, key) for key in offered if row[key])
    most = "any" if row["max_spins"] is None else str(row["max_spins"])
    return (row["backend"], row["law"], most, offers, ", ".join(row["gradients"]))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of "dwave.system" is missing
        return False


def compile_kernels(progress: arguments.ProgressOption = True, as_json: arguments.JsonOption = False) -> None:
    """Compile all kernels ahead, once per machine and version; without it each is compiled at its first use."""
    from diabat.attention import warm_up as layers
    from diabat.progress import new_bar
    from diabat.samplers import warm_up as backends

    groups, names = [], {**backends.GROUPS, **layers.GROUPS}
    with new_bar(shown=progress) as bar:
        task, compiling = bar.add_task("kernels", total=len(names)), backends.warm_up(names)
        for name in bar.track(names, task_id=task):
            bar.update(task, description=name)
            groups.append(next(compiling))
    compiled = [group for group in groups if group.functions]
    if as_json:
        print_json({"groups": [group._asdict() for group in groups]})
    elif not compiled:
        say("Nothing to compile: all kernels are on disk.")
    else:
        rows = [(g.group, str(g.functions), f"{g.seconds:.1f}") for g in compiled]
        total = sum(g.functions for g in compiled), sum(g.seconds for g in compiled)
        rows.append(("all", str(total[0]), f"{total[1]:.1f}"))
        print_table("Compiled", ("kernels", "functions", "seconds"), rows)
