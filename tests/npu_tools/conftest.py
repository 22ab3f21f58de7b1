"""Where the programs are that tests may read: `--air-ir DIR` names a folder of upstream's printed programs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def air_ir(request: pytest.FixtureRequest) -> Path:
    """The folder given with --air-ir; tests that need it are skipped without."""
    given = request.config.getoption("--air-ir")
    if given is None or not Path(given).is_dir():
        pytest.skip("give --air-ir DIR with upstream's printed AIR programs to run this")
    return Path(given)
