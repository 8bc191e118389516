"""The command line as a whole: versions, help, wrong usage, and tables folded to the width of the screen."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runs import run

import diabat
from diabat.cli import backends
from diabat.cli.failures import sentence
from diabat.cli.output import print_table
from diabat.compute.loading import preparing
from diabat.progress import compiling_bar

app = import_module("diabat.cli.app")  # the name diabat.cli.app is that of the application


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"diabat {diabat.__version__}\n")


MISTAKES = """
train recal-exact
train recall-exact trainin.rate=1
train recall-exact sampler.memory=1
train nowhere.yaml
config show recall-exact task.pair=3
anneal learn output=p.json anneal.step=2
sample problem.yaml sampler.bakend=dqa
sample problem.yaml sampler.backend
fidelity fidelity.backends.t.backend=tempering fidelity.backends.t.sweep=3
evaluate nowhere
explain nowhere (a)
heads analyse model questions.jsonl layer=[1]
heads attribute model questions.jsonl permutation=4
heads calibrate analysis min_siz=2
nonsense
"""


def test_help_and_refusals_of_typing_mistakes_import_nothing_heavy() -> None:
    """They answer in less than half a second; torch alone takes two."""
    asked = [*(f"{words} -h" for words in (*app.COMMANDS, "")), "config list", "config list --json"]
    code = (
        "import sys\n"
        "from diabat.cli.app import main\n"
        f"for line, code in {[*((line, 0) for line in asked), *((m, 2) for m in MISTAKES.split(chr(10)) if m)]}:\n"
        "    sys.argv = ['diabat', *line.split()]\n"
        "    try:\n        main()\n    except SystemExit as stop:\n        assert (stop.code or 0) == code, line\n"
        "    heavy = {'torch', 'numpy', 'scipy', 'qiskit', 'dimod', 'numba'} & set(sys.modules)\n"
        "    assert not heavy, (line, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: diabat") == len(app.COMMANDS) + 1


def test_no_command_prints_help_as_usage_error() -> None:
    assert [run(*words).exit_code for words in ((), ("config",))] == [2, 2]


def test_debug_adds_the_traceback(tmp_path: Path) -> None:
    result = run("--debug", "sample", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback (most recent call last)")
    assert result.stderr.endswith(f"Error: '{tmp_path / 'none'}': no such file.\n")


class OwnError(Exception):
    """An error of a kind that nobody expects."""


@pytest.mark.parametrize(("error", "expected"), [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/x"), "'run/x': No space left on device."),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device."),
    (ValueError("a: expected b,\n   got c."), "a: expected b, got c."),
    (MemoryError(), "out of memory."),
    (KeyError("x"), "unexpected KeyError: 'x'. Run 'diabat --debug ...' for the traceback."),
    (ZeroDivisionError(), "unexpected ZeroDivisionError. Run 'diabat --debug ...' for the traceback."),
    (OwnError("boo"), "unexpected OwnError: boo. Run 'diabat --debug ...' for the traceback."),
])  # fmt: skip
def test_every_error_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str) -> None:
    def fail() -> None:
        raise error

    assert sentence(error) == expected
    monkeypatch.setattr(backends, "extra_rows", fail)
    result = run("backends")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {expected}\n"


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backends, "extra_rows", interrupted)
    result = run("backends")
    assert (result.exit_code, result.stderr.strip()) == (130, "Interrupted.")


@pytest.mark.parametrize("terminal", [True, False])
def test_compiling_is_a_bar_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "display", None)
    monkeypatch.setattr(backends, "extra_rows", lambda: [])
    monkeypatch.setattr(app, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: terminal)))
    assert run("backends").exit_code == 0
    assert preparing.display is (compiling_bar if terminal else None)


def test_python_m_diabat_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "diabat", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"diabat {diabat.__version__}\n"


def test_warnings_are_sentences_without_file_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> list[object]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("mind the\n   gap.", stacklevel=1)
        return []

    monkeypatch.setattr(backends, "extra_rows", warn)
    before = warnings.showwarning
    result = run("backends")
    assert (result.exit_code, result.stderr) == (0, "Warning: mind the gap.\n")
    assert warnings.showwarning is before


def test_the_console_script_calls_main() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="diabat")
    assert script.load() is diabat.cli.main


def test_a_narrow_table_loses_no_character(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "31")
    print_table("", ("name", "C", "attended", "µs"), [("a_name_that_is_long", "-9.98e-05", "[x]", "12.5")])
    found = "".join(capsys.readouterr().out.split())
    assert sorted(found.replace("─", "")) == sorted("nameCattendedµsa_name_that_is_long-9.98e-05[x]12.5")


def test_a_long_table_is_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Marginals", ("spin", "P"), [(str(i), "0.5") for i in range(1001)])
    lines = capsys.readouterr().out.splitlines()
    assert (lines[:2], lines[-2], len(lines)) == (["Marginals", "spin\tP"], "1000\t0.5", 1004)


def test_no_empty_headings_and_a_title_as_wide_as_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table("A title wider than its [table]", ("", ""), [("loss", "1.4 nats")])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "A title wider than its [table]",
        "loss   1.4 nats",
        "",
    ]
