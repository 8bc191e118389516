"""Imports run one way: a file may import its own layer and those below."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import diabat

ROOT = Path(diabat.__file__).parent
# From the lowest to the highest.
LAYERS = (
    "checks extras files documents plots progress report secrets version",
    "compute",
    "checkpoints ising",
    "circuits",
    "samplers",
    "attention fitting",
    "testing huggingface",
    "heads lab lab.models lab.tasks",
    "lab.studies lab.training",
    "lab.config",
    "lab.runs",
    "cli __main__",
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
# Units that nobody imports but these.
ONLY_FOR: dict[str, set[str]] = {"testing": set(), "heads": {"cli"}, "lab": {"__init__", "cli"}}
FILES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py"))
KERNELS = [
    f"{folder}/{name}.py"
    for folder, names in {
        "attention": "window_gradient_kernel window_kernel",
        "attention/games": "order_kernel pair_gradient_kernel pair_kernel",
        "compute": "counter_random scratch threads",
        "samplers/banded": "kernel steps torch walks",
        "samplers/exact": "kernel kernel_gradient kernel_pairs kernel_strong kernel_tables",
        "samplers/mean_field": "kernel rules",
        "samplers/tempering": "averages chain_statistics edges kept kernel ladder simulation single_lane summed",
    }.items()
    for name in names.split()
]


def unit(file: str) -> str:
    """``samplers`` for samplers/dqa.py, ``checks`` for checks.py, ``lab.tasks`` for lab/tasks/recall.py."""
    inside = file.startswith("lab/") and file != "lab/__init__.py"
    return ".".join(file.split("/")[: 2 if inside else 1]).removesuffix(".py")


def module(file: str) -> str:
    return ".".join(
        ["diabat", *file.removesuffix(".py").removesuffix("__init__").strip("/").split("/")]
    ).strip(".")


def of(*units: str) -> list[str]:
    return [f for f in FILES if unit(f) in units]


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def tree(file: str) -> ast.Module:
    return ast.parse(text(file))


@cache
def nodes(file: str) -> list[ast.AST]:
    return list(ast.walk(tree(file)))


@cache
def at_import(file: str) -> list[ast.AST]:
    """Nodes that run when the module is imported: neither function bodies nor ``if TYPE_CHECKING``."""
    pending: list[ast.AST] = list(tree(file).body)
    found: list[ast.AST] = []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        found.append(node)
        pending.extend(ast.iter_child_nodes(node))
    return found


def named(file: str, found: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that import statements name."""
    package = ["diabat", *Path(file).parent.parts]
    for node in found:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


@cache
def top_imports(file: str) -> frozenset[str]:
    """Dotted names of all modules that a file imports when it is imported."""
    return frozenset(named(file, at_import(file)))


def imports_package(file: str, package: str, names: Callable[[str], Iterable[str]] | None = None) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in (names or imports)(file))


# Themselves imported on first use, so that numba is loaded only then.
JIT = ("numba", "llvmlite", "diabat.compute.jit")
COMPILED = [f for f in FILES if any(imports_package(f, package, top_imports) for package in JIT)]
LOADED = {module(file) for file in COMPILED}


@cache
def imports(file: str) -> frozenset[str]:
    """Dotted names of all modules that a file imports, inside functions too.

    Kernels are also imported by name, by diabat.compute.loading.loaded.
    """
    quoted = {n.value for n in nodes(file) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return frozenset(named(file, nodes(file))) | (quoted & LOADED)


@cache
def calls(file: str) -> list[ast.Call]:
    return [node for node in nodes(file) if isinstance(node, ast.Call)]


def asked_types(file: str) -> set[str]:
    """Names of the types in the calls of ``isinstance`` of a file."""
    asked = [n.args[1] for n in calls(file) if ast.unparse(n.func) == "isinstance"]
    return {node.id for kind in asked for node in ast.walk(kind) if isinstance(node, ast.Name)}


def units_imported(file: str) -> set[str]:
    parts = [name.split(".") for name in imports(file) if name.startswith("diabat.")]
    return {".".join(names[1:end]) for names in parts for end in (2, 3)} & LAYER.keys()


def test_the_parser_sees_imports() -> None:
    """Guard of this file: the layers are not empty by mistake."""
    simulation, kernel = "samplers/tempering/simulation.py", "diabat.samplers.tempering.kernel"
    assert {"ising", "circuits", "samplers"} <= units_imported("samplers/dqa.py")
    assert imports_package(simulation, kernel)
    assert not imports_package(simulation, kernel, top_imports)
    assert {"samplers/tempering/kernel.py", "compute/simd.py", "attention/window_kernel.py"} <= set(COMPILED)
    assert imports_package("ising/dimod_models.py", "dimod")


def test_every_file_has_a_layer() -> None:
    assert {unit(f) for f in FILES} - LAYER.keys() == {"__init__"}


CIRCUITS = of("circuits")
PLANS = [f for f in CIRCUITS if f != "circuits/__init__.py"]
FOLDERS = ("experiments", "benchmarks", "tests", "examples", "fuzz", "scripts")
# What attention may know of samplers: the interface, what is asked and answered, and backends by their name.
INTERFACE = {
    "analytic", "answers", "base", "call_checks", "capabilities", "derivatives", "diagnostics", "folding",
    "kept", "odds", "precision", "registry", "seeds", "state",
}  # fmt: skip
NO_PROBLEM = [
    *("diabat.ising", "diabat.samplers.base", "diabat.samplers.exact.sampler", "diabat.samplers.flat")
]
# Between arrays and compiled loops.
NUMPY_ONLY = [
    *of("compute"),
    "circuits/engines/native/engine.py",
    "circuits/engines/native/kernel_inputs.py",
    "samplers/mean_field/rules.py",
    "samplers/tempering/averages.py",
    "samplers/tempering/chain_statistics.py",
    "samplers/tempering/ladder.py",
    "samplers/tempering/simulation.py",
]
# What a configuration knows of the packages that it describes.
DESCRIBED = {
    "models": {"diabat.lab.models", "diabat.lab.models.MODELS", "diabat.lab.models.ModelOptions"},
    "tasks": {"diabat.lab.tasks", "diabat.lab.tasks.TASKS", "diabat.lab.tasks.TaskOptions"},
    "training": {"diabat.lab.training.options"},
}
# Are imported by those who ask for a subclass of a dimod.Sampler: one converts by diabat.ising, the other takes arrays.
EDGES = {"samplers/ocean.py", "samplers/dimod/tiled.py", "testing/strict_qpu.py"}
# Hands arrays that diabat.ising made to dimod, and takes reads.
CARRIERS = {"samplers/dimod/problems.py"}
# Knows what a dimod sampler is, and no model.
CLASSES = {"samplers/dimod/submission.py"}
HEAVY = {"qiskit", "qiskit_aer", "dimod", "matplotlib", "transformers", "dwave"}


def any_of(*packages: str) -> Callable[[str], list[str]]:
    """Those packages that a file imports."""
    return lambda file: [package for package in packages if imports_package(file, package)]


def from_above(file: str) -> set[str]:
    return {name for name in units_imported(file) if LAYER[name] > LAYER[unit(file)]}


def other_engines(file: str) -> set[str]:
    """What an anneal is lies below what runs it; each kind of engine stands alone."""
    engines = {name for name in imports(file) if name.startswith("diabat.circuits.engines.")}
    if not file.startswith("circuits/engines/"):
        return engines
    others = {"native", "torch", "qiskit"} - {file.split("/")[2]}
    return {name for name in engines if name.split(".")[3] in others}


# One compiled call attends, and enumerates between scores and weights.
ENUMERATING = tuple(
    f"attention/{name}.py" for name in ("compiled_windows", "window_gradient_kernel", "window_kernel")
)


def backends(file: str) -> set[str]:
    parts = [name.split(".") for name in imports(file) if name.startswith("diabat.samplers.")]
    known = INTERFACE | {"exact"} if file in ENUMERATING else INTERFACE
    return {names[2] for names in parts} - known


def eager_kernels(file: str) -> set[str]:
    """One kernel may need another at once."""
    return {k for k in LOADED if file not in COMPILED and imports_package(file, k, top_imports)}


def own_threads_and_scratch(file: str) -> set[str]:
    """One pool of threads for all of them, and one place that aligns memory."""
    found = set(any_of("concurrent")(file)) if file != "compute/threads.py" else set()
    if file != "compute/scratch.py":
        found |= {word for word in (".ctypes.data", "__array_interface__") if word in text(file)}
    return found


def more_than_described(file: str) -> set[str]:
    """A configuration knows names and options, and asks neither a model nor a task for its type."""
    found = asked_types(file) & {"Task", "Transformer"}
    for name in imports(file):
        parts = name.split(".")
        known = DESCRIBED.get(parts[2]) if name.startswith("diabat.lab.") else None
        found |= set() if known is None or ".".join(parts[:4]) in known else {name}
    return found


def heavy(file: str) -> set[str]:
    top = {name.split(".")[0] for name in top_imports(file)}
    lazy = HEAVY - ({"dimod", "dwave"} if file in EDGES else set())
    return top & (lazy if file in COMPILED else lazy | {"numba"})


def biases(file: str) -> set[str]:
    """``.linear`` and ``.quadratic`` of a model; torch.nn.functional.linear is no bias of a quadratic model."""
    found = [n for n in nodes(file) if isinstance(n, ast.Attribute) and n.attr in ("linear", "quadratic")]
    return {ast.unparse(n) for n in found if ast.unparse(n.value) not in ("F", "nn", "functional")}


def prints(file: str) -> set[str]:
    """``cli/output.py`` escapes what a terminal would obey."""
    names = [ast.unparse(node.func) for node in calls(file)]
    return {n for n in names if n in ("print", "typer.echo", "echo") or ".stdout.write" in n}


# What it says; the files that it is about; what of a file breaks it.
RULES: dict[str, tuple[Iterable[str], Callable[[str], Iterable[object]]]] = {
    "imports run one way": ([f for f in FILES if f != "__init__.py"], from_above),
    "the lowest layer stands alone": (
        ["checks.py", "files.py", "secrets.py"], lambda f: units_imported(f) - {"checks"}),
    "the package needs nothing that is not installed": (FILES, any_of(*FOLDERS)),
    "circuits import nothing else of diabat": (
        CIRCUITS, lambda f: units_imported(f) - {"checks", "files", "secrets", "compute", "circuits"}),
    "the torch engine is loaded on first use, by its name in the package": (
        [f for f in CIRCUITS if not f.startswith("circuits/engines/torch/")], any_of("torch")),
    "plans know no engine and engines not each other": (PLANS, other_engines),
    "the toolbox knows no physics": (of("compute"), lambda f: units_imported(f) - {"checks", "compute"}),
    "attention and models import no backend": (of("attention", "lab.models", "lab.training"), backends),
    "kernels know neither dimod nor configuration": (
        [*KERNELS, *CIRCUITS], any_of("dimod", "diabat.documents", "diabat.lab", "pydantic", "yaml")),
    "kernels know no problem and no sampler": (KERNELS, any_of(*NO_PROBLEM)),
    "compiled kernels know no torch": ({*COMPILED, *NUMPY_ONLY}, any_of("torch")),
    "compiled kernels are imported on first use": (FILES, eager_kernels),
    "compiled kernels are used": (
        COMPILED, lambda f: [] if any(imports_package(user, module(f)) for user in FILES) else ["unused"]),
    "kernels share threads and scratch": ({*KERNELS, *COMPILED, *CIRCUITS}, own_threads_and_scratch),
    "a configuration only describes": (of("lab.config"), more_than_described),
    "no code checks the type of task or model": (
        [f for f in FILES if f.startswith(("lab/config/", "cli/", "lab/runs/build"))],
        lambda f: [n for n in asked_types(f) if n.endswith("Options") or n == "Task"]),
    "heavy libraries are imported where they are used": (FILES, heavy),
    "the sign of dimod is flipped in one file": ([f for f in FILES if f != "ising/dimod_models.py"], biases),
    "only those who carry models know dimod": (
        {f for f in FILES if unit(f) != "ising"} - EDGES - CARRIERS - CLASSES,
        any_of("dimod")),
    "commands print by one function": ([f for f in FILES if f != "cli/output.py"], prints),
    "games on heads stand on attention and Hugging Face models": (
        of("heads"), lambda f: units_imported(f) & {"lab", "testing", "circuits"}),
    "only the commands on heads have options of a command line": (
        [f for f in of("heads") if not f.startswith("heads/commands")],
        any_of("diabat.documents", "diabat.heads.commands")),
    **{
        f"{name} is imported by {' and '.join(sorted(users)) or 'nobody'}": (
            [f for f in FILES if unit(f).split(".")[0] not in {name, *users}], any_of(f"diabat.{name}"))
        for name, users in ONLY_FOR.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    files, breaks = RULES[rule]
    broken = {file: sorted(map(str, found)) for file in sorted(files) if (found := breaks(file))}
    assert not broken, f"{rule}: " + "; ".join(f"{file} has {found}" for file, found in broken.items())
    assert files


def test_modules_import_each_other_without_circles() -> None:
    """Imports inside functions and of types count; ``__init__``, which gathers names of its package, is left out."""
    modules = {module(f): f for f in FILES if not f.endswith("__init__.py")}
    graph = {name: (imports(file) & modules.keys()) - {name} for name, file in modules.items()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_shipped_configuration_points_into_the_conformance_suite() -> None:
    """Except to the mock of a processor."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "configs").rglob("*.yaml")]
    assert texts
    assert not [t for t in texts if "diabat.testing" in t.replace("diabat.testing.strict_qpu:", "")]


def test_figures_are_made_and_saved_in_one_file() -> None:
    made = any_of("matplotlib.figure", "matplotlib.backends", "matplotlib.pyplot")
    assert [f for f in FILES if made(f)] == ["plots.py"]
    assert [f for f in FILES if "savefig" in text(f)] == ["plots.py"]


# Calls that read a file, or open one that may be read, by their last name.
READS = {
    "open", "fdopen", "FileIO", "read_text", "read_bytes", "load_file", "safe_open", "connect", "fromfile", "loadtxt",
    "genfromtxt", "memmap", "read_csv", "read_json", "read_table", "from_file",
}  # fmt: skip
# Every other file is read by diabat.files.read_file, which refuses devices, pipes and what is too large.
OWN_READS = {
    ("compute/memory.py", "open"): "a file of the system",
    ("files.py", "open"): "read_file itself, and the folder of a file that was written",
    ("files.py", "FileIO"): "read_file itself",
    ("lab/training/folder.py", "fdopen"): "writes the metrics",
    ("circuits/plan_file.py", "read_text"): "plans of the package, perhaps in an archive",
    ("lab/config/keys.py", "read_text"): "a file of the package, perhaps in an archive",
    ("circuits/schedules.py", "open"): "schedules of the package, perhaps in an archive",
    ("circuits/schedules.py", "load"): "the same",
    ("huggingface/loading.py", "safe_open"): "names of tensors of an adapter that was checked and loaded",
    ("documents/yaml_files.py", "read_bytes"): "calls read_file",
    ("ising/problem_files/__init__.py", "read_bytes"): "that one",
    ("cli/config.py", "read_bytes"): "that one",
}


def test_saved_tensors_are_read_once() -> None:
    """Checkpointing computes them at the first reading, and has none at a second."""
    readings = [
        (file, function.name, [n for n in ast.walk(function) if getattr(n, "attr", "") == "saved_tensors"])
        for file in FILES
        for function in nodes(file)
        if isinstance(function, ast.FunctionDef)
    ]
    assert any(found for _, _, found in readings)
    assert [(file, name) for file, name, found in readings if len(found) > 1] == []


def test_files_are_read_in_one_place() -> None:
    found = set()
    for file in FILES:
        for name in (ast.unparse(node.func) for node in calls(file)):
            if name in ("np.load", "numpy.load", "torch.load") or name.split(".")[-1] in READS:
                found.add((file, name.split(".")[-1]))
    assert found == set(OWN_READS)


# Functions whose results functools keeps: they hold no tensor.  Tables of tensors, which inference mode and the default
# device would spoil, and which grow with a batch, are kept by diabat.samplers.kept within a limit in bytes.
MEMORY = ("cache", "lru_cache")
MEMORIES = {
    ("attention/compiled.py", "_rebuilt"): "a backend without parameters",
    ("attention/compiled.py", "_usual_dispatch"): "keys of torch",
    ("circuits/engines/native/kernel_inputs.py", "native_plan"): "arrays of a plan",
    ("circuits/engines/native/kernel_inputs.py", "pair_cells"): "arrays of at most all pairs",
    ("circuits/engines/native/kernel_inputs.py", "job_table"): "a row for each block of problems",
    ("circuits/engines/native/kernel_inputs.py", "scratch_of"): "numbers",
    ("circuits/schedules.py", "schedule"): "schedules of the package",
    ("compute/jit.py", "_warn_without_cache"): "a warning that was given",
    ("compute/loading.py", "loaded"): "modules",
    ("compute/threads.py", "_pool"): "threads",
    ("lab/config/keys.py", "known_keys"): "keys of the package",
    ("lab/config/schema.py", "options_model"): "classes",
    ("heads/lora/trainer.py", "game_trainer"): "a class",
    ("huggingface/boltzmann/model.py", "kinds"): "classes",
    ("progress.py", "stderr_console"): "the console",
    ("samplers/banded/compiled.py", "_kept_memory"): "scratch of a thread, up to a limit",
    ("samplers/banded/compiled.py", "scratch_rows"): "a number",
    ("samplers/banded/compiled.py", "segment_of"): "a number",
    ("samplers/exact/compiled.py", "_rows"): "a number",
    ("samplers/exact/compiled.py", "_free"): "scratch that no call uses, of problems of up to 16 spins",
    ("samplers/mean_field/rules.py", "probe"): "an array of n numbers",
    ("samplers/mean_field/sampler.py", "_below"): "a number",
    ("samplers/tempering/results.py", "split"): "of one answer, and ends with it",
    ("samplers/tempering/results.py", "largest"): "the same",
}


def remembered(file: str) -> list[str]:
    """Names of what ``cache`` and ``lru_cache`` are called on or decorate, "?" for any other use of them."""

    def uses(node: ast.AST) -> int:
        kinds = (ast.Name, ast.Attribute)
        return sum(isinstance(n, kinds) and ast.unparse(n).split(".")[-1] in MEMORY for n in ast.walk(node))

    found = []
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef):
            found += [node.name for decorator in node.decorator_list if uses(decorator)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and uses(node.value.func):
            found.append(ast.unparse(node.targets[0]))
    known = sum(uses(node) for node in nodes(file) if isinstance(node, ast.Name | ast.Attribute))
    return found + ["?"] * (known - len(found))


def test_tables_of_tensors_are_kept_in_one_place() -> None:
    names = [f"functools.{name}" for name in MEMORY]
    users = [f for f in FILES if any_of(*names)(f) or any(name in text(f) for name in names)]
    found = [(file, name) for file in users for name in remembered(file)]
    assert sorted(found) == sorted(MEMORIES)


def test_every_module_imports_and_is_documented() -> None:
    """All but ``__main__``, which runs the command line when it is imported."""
    silent = [f for f in FILES if f != "__main__.py" and not importlib.import_module(module(f)).__doc__]
    assert not silent
