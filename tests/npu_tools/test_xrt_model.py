"""A whole model over the device adapter and the stand-in: the same bits as over the emulator, from kernels that were compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from npu_tools.backends.xrt import XrtBackend
from npu_tools.models import open_weights
from npu_tools.models.runner import Runner
from tests.npu_tools.small_models import BACKENDS, KERNELS, MODELS, TOKENS, dimensions
from tests.stand_in.machine import QUICK, StandIn


def test_a_model_gives_the_same_logits_on_both_backends(tmp_path: Path) -> None:
    machine, config = StandIn(tmp_path), MODELS["llama"]
    patience = replace(QUICK, dispatch_s=30, load_s=30)
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=patience) as device:
        logits = []
        for backend in (BACKENDS["faithful"], device):
            runner = Runner(dimensions(config), open_weights("random:5", config), [KERNELS], backend, 64, layers=1)
            logits.append(runner.prefill(TOKENS).logits)
            ran = {spent.ran_on for spent in runner.spent.values()}
        assert ran == {"npu", "host"}
    np.testing.assert_array_equal(logits[0], logits[1])
    assert len(machine.calls("aircc")) >= 6
