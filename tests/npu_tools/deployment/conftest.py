"""A machine over a fresh workspace, in the world of quick_world.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_tools.deployment.machine import Machine
from npu_tools.deployment.workspace import Workspace
from tests.npu_tools.deployment.quick_world import KERNELS, QuickWorld


@pytest.fixture
def world() -> QuickWorld:
    return QuickWorld()


@pytest.fixture
def machine(tmp_path: Path, world: QuickWorld) -> Machine:
    """Not opened yet."""
    return Machine(Workspace(tmp_path / "workspace"), world, KERNELS)
