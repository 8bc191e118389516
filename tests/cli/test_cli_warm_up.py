"""``diabat warm-up``: what it prints, and that there is nothing to do twice."""

from collections.abc import Iterator

import pytest
from cli_runs import run, run_json

from diabat.samplers import warm_up
from diabat.samplers.warm_up import Warmed


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Warmed]:
    """Groups of backends and of layers whose kernels are not compiled here."""
    found = [Warmed("exact", 16, 3.21), Warmed("refine", 0, 0.1)]
    found += [Warmed("attention", 0, 0.1), Warmed("token games", 0, 0.1)]

    def warmed(groups: dict[str, object]) -> Iterator[Warmed]:
        assert list(groups) == [group.group for group in found]
        yield from found

    monkeypatch.setattr(warm_up, "GROUPS", {group.group: None for group in found[:2]})
    monkeypatch.setattr(warm_up, "warm_up", warmed)
    return found


def test_every_group_that_was_compiled_has_its_time(groups: list[Warmed]) -> None:
    result = run("warm-up", "--no-progress")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["exact", "16", "3.2"] in rows
    assert ["all", "16", "3.2"] in rows
    assert "refine" not in result.stdout
    assert "token games" in run("warm-up").stderr  # the progress bar
    assert run_json("warm-up", "--no-progress")["groups"] == [group._asdict() for group in groups]


def test_it_reports_that_nothing_was_to_do(groups: list[Warmed]) -> None:
    groups[0] = Warmed("exact", 0, 0.2)
    assert run("warm-up", "--no-progress").stdout == "Nothing to compile: all kernels are on disk.\n"
