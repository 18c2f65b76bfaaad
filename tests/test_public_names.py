from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.for_each import for_each

import interlock
from interlock import outcomes
from interlock.core.decision import Outcome


def test_public_names_are_sorted_and_few() -> None:
    assert sorted(set(interlock.__all__)) == interlock.__all__
    assert len(interlock.__all__) <= 30


def test_outcomes_are_sorted() -> None:
    assert sorted(set(outcomes.__all__)) == outcomes.__all__


@for_each("name", outcomes.__all__)
def test_an_outcome_is_a_name_of_the_package_too(name: str) -> None:
    assert issubclass(getattr(outcomes, name), Outcome)
    assert getattr(interlock, name) is getattr(outcomes, name)


@pytest.mark.parametrize("name", interlock.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(interlock, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = interlock.nothing


@pytest.mark.parametrize("module", ["aio", "errors", "guard", "outcomes"])
def test_a_module_is_there_after_importing_the_package(module: str) -> None:
    code = f"import interlock; print(interlock.{module}.__name__, {module!r} in dir(interlock))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"interlock.{module} True\n"


def test_a_fresh_interpreter_lists_every_public_name() -> None:
    code = "import interlock, sys; sys.exit(not set(interlock.__all__) <= set(dir(interlock)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("costly", ["asyncio", "apsw", "msgspec", "socket"])
def test_importing_the_package_costs_nothing(costly: str) -> None:
    code = f"import interlock, sys; sys.exit({costly!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_blocking_client_does_not_need_asyncio(tmp_path: Path) -> None:
    code = (
        f"import interlock, sys; fleet = interlock.connect({str(tmp_path / 's.db')!r}, agent='a');"
        "fleet.locks.acquire('merge'); fleet.close(); sys.exit('asyncio' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
