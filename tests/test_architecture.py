"""Imports run one way: a file may import its own layer and those below."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import diabat

ROOT = Path(diabat.__file__).parent
LAYER = {
    "checks": 0,
    "extras": 0,
    "files": 0,
    "plots": 0,
    "progress": 0,
    "scrubbing": 0,
    "edges": 0,
    "ising": 0,
    "ising_checks": 0,
    "inputs": 0,
    "compute": 1,
    "circuits": 2,
    "samplers": 3,
    "attention": 4,
    "models": 5,
    "tasks": 5,
    "studies": 6,
    "training": 6,
    "testing": 6,
    "huggingface": 7,
    "config": 8,
    "problem_files": 8,
    "heads": 9,
    "runs": 9,
    "cli": 10,
    "__main__": 10,
}
FILES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py"))
KERNELS = [
    "samplers/exact/half_tables.py",
    "samplers/exact/half_split.py",
    "samplers/exact/kernel.py",
    "samplers/exact/kernel_gradient.py",
    "samplers/exact/kernel_pairs.py",
    "samplers/exact/kernel_tables.py",
    "samplers/exact/states.py",
    "samplers/banded/kernel.py",
    "samplers/banded/native.py",
    "samplers/banded/steps.py",
    "samplers/banded/torch.py",
    "samplers/banded/walks.py",
    "samplers/mean_field/kernel.py",
    "samplers/mean_field/rules.py",
    "compute/counter_random.py",
    "compute/scratch.py",
    "compute/threads.py",
    "samplers/tempering/summed.py",
    "samplers/tempering/kernel.py",
    "samplers/tempering/edges.py",
    "samplers/tempering/single_lane.py",
    "samplers/tempering/cached.py",
    "samplers/tempering/simulation.py",
    "samplers/tempering/averages.py",
    "samplers/tempering/ladder.py",
    "samplers/tempering/chain_statistics.py",
    "attention/games/pair_gradient_kernel.py",
    "attention/games/pair_kernel.py",
    "attention/games/order_kernel.py",
    "attention/chain_gradient.py",
    "attention/chain_step.py",
    "attention/chain_kernel.py",
    "attention/chain_products.py",
]
# Themselves imported on first use, so that numba is loaded only then.
COMPILED = [
    "attention/chain_gradient.py",
    "attention/chain_step.py",
    "attention/chain_kernel.py",
    "attention/chain_products.py",
    "attention/fused_kernel.py",
    "compute/jit.py",
    "circuits/engines/native/adjoint.py",
    "circuits/engines/native/kernel.py",
    "circuits/engines/native/narrow.py",
    "circuits/engines/native/passes.py",
    "circuits/engines/native/steps.py",
    "circuits/engines/native/undo.py",
    "compute/simd.py",
    "samplers/banded/kernel.py",
    "samplers/banded/steps.py",
    "samplers/banded/walks.py",
    "samplers/exact/kernel.py",
    "samplers/exact/kernel_gradient.py",
    "samplers/exact/kernel_pairs.py",
    "samplers/exact/kernel_tables.py",
    "samplers/mean_field/kernel.py",
    "compute/compiled_random.py",
    "compute/simd_bits.py",
    "compute/simd_functions.py",
    "attention/games/pair_gradient_kernel.py",
    "attention/games/pair_kernel.py",
    "attention/games/order_kernel.py",
    "samplers/tempering/summed.py",
    "samplers/tempering/kernel.py",
    "samplers/tempering/edges.py",
    "samplers/tempering/single_lane.py",
    "samplers/tempering/cached.py",
]
# Kernels are also imported by name, by diabat.compute.loading.loaded.
LOADED = {f"diabat.{file.removesuffix('.py').replace('/', '.')}" for file in COMPILED}
CIRCUITS = [f for f in FILES if f.startswith("circuits/")]


def unit(file: str) -> str:
    """``samplers`` for samplers/dqa.py, ``ising`` for ising.py."""
    return file.split("/")[0].removesuffix(".py")


@cache
def imports(file: str, *, at_module_level: bool = False) -> frozenset[str]:
    """Dotted names of all modules that a file imports, inside functions too unless told otherwise."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    package = ["diabat", *Path(file).parent.parts]
    found: set[str] = set()
    nodes = _top_level(tree) if at_module_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and not at_module_level and node.value in LOADED:
            found.add(node.value)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def _top_level(tree: ast.Module) -> list[ast.AST]:
    """Nodes that run when the module is imported: neither function bodies nor ``if TYPE_CHECKING``."""
    pending: list[ast.AST] = list(tree.body)
    nodes: list[ast.AST] = []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        nodes.append(node)
        pending.extend(ast.iter_child_nodes(node))
    return nodes


def units_imported(file: str) -> set[str]:
    names = {name.split(".")[1] for name in imports(file) if name.startswith("diabat.")}
    return names & LAYER.keys()


def imports_package(file: str, package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in imports(file))


def test_every_file_has_a_layer() -> None:
    assert {unit(f) for f in FILES} - LAYER.keys() == {"__init__"}


@pytest.mark.parametrize("file", [f for f in FILES if f != "__init__.py"])
def test_imports_run_one_way(file: str) -> None:
    above = {name for name in units_imported(file) if LAYER[name] > LAYER[unit(file)]}
    assert not above, f"{file} (layer {LAYER[unit(file)]}) imports {sorted(above)} from above"


@pytest.mark.parametrize("file", ["checks.py", "files.py", "scrubbing.py"])
def test_the_lowest_layer_stands_alone(file: str) -> None:
    assert units_imported(file) <= {"checks"}


@pytest.mark.parametrize("file", FILES)
def test_the_package_needs_nothing_that_is_not_installed(file: str) -> None:
    for folder in ("experiments", "benchmarks", "tests", "examples", "fuzz", "scripts"):
        assert not imports_package(file, folder)


def test_the_parser_sees_imports() -> None:
    """Guard of this file: the layers are not empty by mistake."""
    assert {"ising", "circuits", "samplers"} <= units_imported("samplers/dqa.py")
    assert imports_package("samplers/tempering/simulation.py", "diabat.samplers.tempering.kernel")
    assert not any(
        n.startswith("diabat.samplers.tempering.kernel")
        for n in imports("samplers/tempering/simulation.py", at_module_level=True)
    )


@pytest.mark.parametrize("file", CIRCUITS)
def test_circuits_import_nothing_else_of_diabat(file: str) -> None:
    assert units_imported(file) <= {"checks", "files", "scrubbing", "compute", "circuits"}
    # The torch engine is loaded on first use, by its name in the package.
    assert file.startswith("circuits/engines/torch/") or not imports_package(file, "torch")


def test_plans_import_each_other_without_circles() -> None:
    """Imports inside functions count; the package's own ``__init__`` gathers all names and is left out."""
    modules = {f"diabat.{f.removesuffix('.py').replace('/', '.')}": f for f in CIRCUITS if f.count("/") == 1}
    del modules["diabat.circuits.__init__"]
    graph = {name: imports(file) & modules.keys() for name, file in modules.items()}
    assert "diabat.circuits.plan" in graph["diabat.circuits.trotter"]
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("compute/")])
def test_the_toolbox_knows_no_physics(file: str) -> None:
    assert units_imported(file) <= {"checks", "compute"}


ENGINES = "diabat.circuits.engines"


@pytest.mark.parametrize("file", [f for f in CIRCUITS if f != "circuits/__init__.py"])
def test_plans_know_no_engine_and_engines_not_each_other(file: str) -> None:
    """What an anneal is lies below what runs it; each kind of engine stands alone."""
    engines = {name for name in imports(file) if name.startswith(f"{ENGINES}.")}
    if not file.startswith("circuits/engines/"):
        assert not engines
    else:
        kind = file.split("/")[2]
        others = {"native", "torch", "qiskit"} - {kind}
        assert not {name for name in engines if name.split(".")[3] in others}


# What attention may know of samplers: the interface, what is asked and answered, and backends by their name.
INTERFACE = set(
    ["answers", "base", "capabilities", "derivatives", "folding", "odds", "registry", "seeds", "state"]
)


@pytest.mark.parametrize("file", [f for f in FILES if unit(f) in ("attention", "models", "training")])
def test_attention_and_models_import_no_backend(file: str) -> None:
    parts = [name.split(".") for name in imports(file) if name.startswith("diabat.samplers.")]
    assert {names[2] for names in parts} <= INTERFACE


def test_the_wing_of_heads_stands_alone() -> None:
    """Games on heads use attention and Hugging Face models; of the rest only the command line knows them."""
    users = {f for f in FILES if unit(f) != "heads" and imports_package(f, "diabat.heads")}
    assert users == {"cli/heads.py"}
    for file in (f for f in FILES if unit(f) == "heads"):
        assert not units_imported(file) & {"runs", "models", "tasks", "testing", "circuits"}, file
    for part in ("games", "calibration", "lora"):  # only the commands have options of a command line
        for file in (f for f in FILES if f.startswith(f"heads/{part}/")):
            assert "config" not in units_imported(file), file
            assert not imports_package(file, "diabat.heads.commands"), file


@pytest.mark.parametrize("file", [*KERNELS, *CIRCUITS])
def test_kernels_know_neither_dimod_nor_configuration(file: str) -> None:
    for package in ("dimod", "diabat.config", "pydantic", "yaml"):
        assert not imports_package(file, package)


@pytest.mark.parametrize("file", KERNELS)
def test_kernels_know_no_problem_and_no_sampler(file: str) -> None:
    for module in (
        "diabat.ising",
        "diabat.samplers.base",
        "diabat.samplers.exact.sampler",
        "diabat.samplers.grouping",
    ):
        assert not imports_package(file, module)


# Between arrays and compiled loops.
NUMPY_ONLY = [
    *(f for f in FILES if f.startswith("compute/")),
    "circuits/engines/native/engine.py",
    "circuits/engines/native/kernel_inputs.py",
    "samplers/mean_field/rules.py",
    "samplers/banded/native.py",
    "samplers/tempering/averages.py",
    "samplers/tempering/chain_statistics.py",
    "samplers/tempering/ladder.py",
    "samplers/tempering/simulation.py",
]


@pytest.mark.parametrize("file", sorted({*COMPILED, *NUMPY_ONLY}))
def test_compiled_kernels_know_no_torch(file: str) -> None:
    assert not imports_package(file, "torch")


@pytest.mark.parametrize("file", COMPILED)
def test_compiled_kernels_are_imported_on_first_use(file: str) -> None:
    module = f"diabat.{file.removesuffix('.py').replace('/', '.')}"
    users = [f for f in FILES if imports_package(f, module)]
    assert users
    # One kernel may need another at once.
    for user in set(users) - set(COMPILED):
        assert not any(
            name == module or name.startswith(f"{module}.") for name in imports(user, at_module_level=True)
        )


@pytest.mark.parametrize("file", sorted({*KERNELS, *COMPILED, *CIRCUITS}))
def test_kernels_share_threads_and_scratch(file: str) -> None:
    """One pool of threads for all of them, and one place that aligns memory."""
    if file != "compute/threads.py":
        assert not imports_package(file, "concurrent")
    if file != "compute/scratch.py":
        text = (ROOT / file).read_text(encoding="utf-8")
        assert ".ctypes.data" not in text
        assert "__array_interface__" not in text


# What a configuration knows of the packages that it describes.
DESCRIBED = {
    "models": {"diabat.models", "diabat.models.MODELS", "diabat.models.ModelOptions"},
    "tasks": {"diabat.tasks", "diabat.tasks.TASKS", "diabat.tasks.TaskOptions", "diabat.tasks.ExampleKind"},
    "training": {"diabat.training.options"},
}


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("config/")])
def test_a_configuration_only_describes(file: str) -> None:
    """It knows names and options, and asks neither a model nor a task for its type."""
    for name in imports(file):
        parts = name.split(".")
        known = DESCRIBED.get(parts[1]) if name.startswith("diabat.") else None
        assert known is None or ".".join(parts[:3]) in known, name
    assert not asked_types(file) & {"Task", "PairTask", "Transformer", "PairClassifier"}


@pytest.mark.parametrize(
    "file", [f for f in FILES if f.startswith(("config/", "cli/", "runs/build", "runs/train"))]
)
def test_no_code_checks_the_type_of_task_or_model(file: str) -> None:
    assert not {n for n in asked_types(file) if n.endswith("Options") or n in ("Task", "PairTask")}


def asked_types(file: str) -> set[str]:
    """Names of the types in the calls of ``isinstance`` of a file."""
    calls = [
        n for n in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))) if isinstance(n, ast.Call)
    ]
    asked = [n.args[1] for n in calls if ast.unparse(n.func) == "isinstance"]
    return {node.id for kind in asked for node in ast.walk(kind) if isinstance(node, ast.Name)}


def test_only_tests_need_the_conformance_suite() -> None:
    """Neither the product nor a shipped configuration points into ``testing``, except to the mock of a processor."""
    assert not [f for f in FILES if unit(f) != "testing" and imports_package(f, "diabat.testing")]
    configs = list((ROOT / "configs").rglob("*.yaml"))
    assert configs
    texts = [path.read_text(encoding="utf-8") for path in configs]
    assert not [text for text in texts if "diabat.testing" in text.replace("diabat.testing.strict_qpu:", "")]


# Are imported by those who ask for a subclass of a dimod.Sampler: one converts by ising.py, the other takes arrays.
EDGES = {"samplers/ocean.py", "testing/strict_qpu.py"}
# Hand arrays that ising.py made to dimod, and take reads.
CARRIERS = {"samplers/dimod/submit.py"}
# Knows what a dimod sampler is, and no model.
CLASSES = {"samplers/dimod/target.py"}


def test_the_sign_of_dimod_is_flipped_in_one_file() -> None:
    """Only ising.py reads or writes biases; problem files build models as they stand in the file."""
    users = {f for f in FILES if imports_package(f, "dimod")}
    assert "ising.py" in users
    assert {unit(f) for f in users - EDGES - CARRIERS - CLASSES} <= {"ising", "problem_files"}
    for file in FILES:
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("linear", "quadratic"):
                # torch.nn.functional.linear is no bias of a quadratic model
                assert file == "ising.py" or ast.unparse(node.value) in ("F", "nn", "functional"), (
                    f"{file}: {ast.unparse(node)}"
                )


HEAVY = ("qiskit", "qiskit_aer", "dimod", "matplotlib", "transformers", "dwave")


@pytest.mark.parametrize("file", FILES)
def test_heavy_libraries_are_imported_where_they_are_used(file: str) -> None:
    top = {name.split(".")[0] for name in imports(file, at_module_level=True)}
    assert not top & set(HEAVY) - ({"dimod", "dwave"} if file in EDGES else set())
    if file not in COMPILED:
        assert "numba" not in top


def test_figures_are_made_and_saved_in_one_file() -> None:
    packages = ("matplotlib.figure", "matplotlib.backends", "matplotlib.pyplot")
    made = {f for f in FILES for package in packages if imports_package(f, package)}
    assert made == {"plots.py"}
    assert {f for f in FILES if "savefig" in (ROOT / f).read_text(encoding="utf-8")} == made


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
    ("training/folder.py", "fdopen"): "writes the metrics",
    ("circuits/plan_file.py", "read_text"): "plans of the package, perhaps in an archive",
    ("circuits/schedules.py", "open"): "schedules of the package, perhaps in an archive",
    ("circuits/schedules.py", "load"): "the same",
    ("samplers/dimod/ledger.py", "connect"): "SQLite opens files by their name; checked before",
    ("huggingface/loading.py", "safe_open"): "names of tensors of an adapter that was checked and loaded",
    ("config/yaml_files.py", "read_bytes"): "calls read_file",
    ("problem_files/__init__.py", "read_bytes"): "that one",
    ("cli/config.py", "read_bytes"): "that one",
}


def test_files_are_read_in_one_place() -> None:
    found = set()
    for file in FILES:
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("np.load", "numpy.load", "torch.load") or name.split(".")[-1] in READS:
                    found.add((file, name.split(".")[-1]))
    assert found == set(OWN_READS)


@pytest.mark.parametrize("file", FILES)
def test_every_module_imports(file: str) -> None:
    parts = [*Path(file).parent.parts, Path(file).stem]
    if parts[-1] == "__main__":
        pytest.skip("runs the command line when imported")
    module = ".".join(["diabat", *(p for p in parts if p != "__init__")])
    assert importlib.import_module(module).__doc__


def test_commands_print_by_one_function() -> None:
    """It escapes what a terminal would obey."""
    for file in FILES:
        if file != "cli/output.py":
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    printing = name in ("print", "typer.echo", "echo") or ".stdout.write" in name
                    assert not printing, f"{file}: {name}"
