"""The ledger of what was spent: shared by processes, whole after a crash, and nothing in it is forgotten."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.files import create_file
from diabat.ising import Ising
from diabat.samplers.dimod import DimodSampler, ledger
from diabat.samplers.dimod.budget import Budget, BudgetError
from diabat.samplers.dimod.ledger import FileLedger, Ledger

from .dimod_fakes import Scripted, all_up

ONE = Ising(torch.zeros(1))


def backend(fake: Scripted, **options: Any) -> DimodSampler:
    return DimodSampler(fake, beta=1.0, **options)


@pytest.mark.parametrize("folder", [False, True])
def test_what_was_refused_is_not_counted(folder: bool, tmp_path: Path) -> None:
    budget = Budget(5, None, FileLedger(tmp_path / "spent") if folder else Ledger())
    budget.hold(3, 0.5)
    with pytest.raises(BudgetError, match="got 3 used and 4 more"):
        budget.hold(4, 0.5)
    assert (budget.reads, budget.seconds) == (3, 0.5)


def spending(folder: Path) -> None:
    """Submissions of one read until the budget of 60 is used up."""
    sampler = backend(Scripted(all_up), cache_dir=folder, max_reads=60)
    with suppress(BudgetError):
        for seed in range(100):
            sampler.sample(ONE, 1, seed=1000 * os.getpid() + seed)


def added_by_processes(path: Path, processes: int, entries: int) -> list[int]:
    """The sums that entries of one read gave, in any order."""
    code = (
        f"import runpy; from pathlib import Path\nledger = runpy.run_path({ledger.__file__!r})['FileLedger']"
        f"(Path({str(path)!r}))\nprint(*(ledger.add(1, 0.5).reads for _ in range({entries})))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return [int(told) for process in running for told in process.communicate(timeout=60)[0].split()]


def test_processes_see_each_other(tmp_path: Path) -> None:
    """Of 400 entries of four processes, each sum includes those before it: no two are the same."""
    assert sorted(added_by_processes(tmp_path / "spent.sqlite", 4, 100)) == list(range(1, 401))
    assert FileLedger(tmp_path / "spent.sqlite").total() == (400, 200.0)


def test_threads_share_a_budget(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: spending(tmp_path), range(4)))
    assert FileLedger(tmp_path / "spent.sqlite").total().reads == 60


def overwritten(path: Path) -> None:
    path.write_bytes(b"not a database of anybody" * 100)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def changed(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(statement)

    return change


ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)"


@pytest.mark.parametrize(
    "damage",
    [
        overwritten,
        cut,
        changed("DROP TABLE spent; CREATE TABLE more (x)"),  # no table at all is a new file
        changed("ALTER TABLE spent DROP COLUMN seconds"),
        changed("DELETE FROM spent"),
        changed("INSERT INTO spent VALUES (0, 0.0)"),
        changed("UPDATE spent SET reads = -5"),
        changed("UPDATE spent SET reads = 'many'"),
        changed("UPDATE spent SET reads = CAST(x'ff' AS TEXT)"),
        changed("UPDATE spent SET seconds = NULL"),
        changed("UPDATE spent SET seconds = 9e999"),
        changed("UPDATE spent SET reads = 9223372036854775807"),
        changed(f"UPDATE spent SET reads = {(1 << 62) + 1}"),
        lambda path: os.truncate(path, 1 << 21),
        # A stranger's code, which would be run by what is asked, or by the next entry.
        changed(f"DROP TABLE spent; CREATE VIEW spent AS {ENDLESS} SELECT x AS reads, 0.0 AS seconds FROM t"),
        changed("CREATE TRIGGER more AFTER INSERT ON spent BEGIN UPDATE spent SET reads = 0; END"),
        changed(
            f"CREATE TRIGGER more AFTER DELETE ON spent BEGIN INSERT INTO spent {ENDLESS} SELECT x, 0.0 FROM t; END"
        ),
        changed("CREATE INDEX more ON spent (abs(reads))"),
        changed("CREATE TABLE more (x)"),
        changed(
            f"DROP TABLE spent; {ledger._TABLE[:-1]} CHECK (seconds >= 0)); INSERT INTO spent VALUES (0, 0.0)"
        ),
    ],
)
def test_a_ledger_that_is_damaged_is_refused(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "spent.sqlite"
    FileLedger(path).add(3, 0.5)
    damage(path)
    expected = (
        r"cache_dir: expected a ledger of reads and seconds in '.*spent.sqlite', got .*; restore a copy"
    )
    for use in (FileLedger.total, partial(FileLedger.add, reads=1, seconds=0.0)):
        with pytest.raises(ValueError, match=expected):
            use(FileLedger(path))
    fake = Scripted(all_up)
    with pytest.raises(ValueError, match=expected):
        backend(fake, cache_dir=tmp_path).sample(ONE, 1, seed=0)
    assert not fake.calls
    path.unlink()
    assert FileLedger(path).add(2, 0.25) == (2, 0.25)


def test_more_than_sqlite_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spent.sqlite"
    FileLedger(path).add(1 << 62, 0.5)
    with pytest.raises(ValueError, match=rf"got \({(1 << 62) + 1}, 0.5\)"):
        FileLedger(path).add(1, 0.0)
    assert FileLedger(path).total() == (1 << 62, 0.5)


@pytest.mark.skipif(os.name == "nt", reason="the system has no such permissions")
def test_the_ledger_has_the_permissions_of_other_files(tmp_path: Path) -> None:
    FileLedger(tmp_path / "spent.sqlite").add(1, 0.0)
    create_file(tmp_path / "other", b"")
    assert (tmp_path / "spent.sqlite").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "spent.sqlite"]


def test_a_process_that_is_killed_in_an_entry_leaves_a_whole_ledger(tmp_path: Path) -> None:
    path = tmp_path / "spent.sqlite"
    FileLedger(path).add(1, 0.5)
    code = (
        f"import os, sqlite3; database = sqlite3.connect({str(path)!r}, isolation_level=None)\n"
        "database.execute('PRAGMA cache_size = 0'); database.execute('BEGIN IMMEDIATE')\n"
        "database.execute('UPDATE spent SET reads = 99'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert FileLedger(path).total() == (1, 0.5)
    assert FileLedger(path).add(1, 0.5) == (2, 1.0)


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no limits of processes")
def test_a_disk_that_takes_nothing_is_told_with_the_ledger(tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    fake = Scripted(all_up)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(BudgetError, match=r"cannot write '.*/spent.sqlite' \(disk I/O error\); nothing"):
            backend(fake, cache_dir=tmp_path).sample(ONE, 1, seed=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not fake.calls
    assert backend(fake, cache_dir=tmp_path).sample(ONE, 1, seed=0).info["reads_spent"] == 1


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    victim.write_text("mine")
    folder.mkdir()
    for name in ("spent.sqlite-journal", "spent.sqlite-wal", "spent.sqlite"):
        (folder / name).symlink_to(victim)
        with pytest.raises(BudgetError, match=rf"{name}' \(a symbolic link, which is not followed\)"):
            backend(Scripted(all_up), cache_dir=folder).sample(ONE, 1, seed=0)
        (folder / name).unlink()
    os.mkfifo(folder / "spent.sqlite-journal")
    with pytest.raises(BudgetError, match=r"spent.sqlite-journal' \(no regular file\)"):
        backend(Scripted(all_up), cache_dir=folder).sample(ONE, 1, seed=0)
    assert victim.read_text() == "mine"
