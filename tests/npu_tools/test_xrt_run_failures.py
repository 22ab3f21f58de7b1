"""Every documented failure of loading and running: the right answer in time; and other ways of succeeding."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from npu_tools.backends.protocol import KernelRun
from npu_tools.backends.xrt.backend import XrtKernel
from tests.npu_tools.xrt_support import NOT_HUNG_S, assert_said, gemv, inputs, made, name
from tests.stand_in.behaviours import DEVICE, TOLERATED, Behaviour


@pytest.mark.parametrize("behaviour", DEVICE, ids=name)
def test_a_failed_run_is_an_answer_with_cause_and_remedy(tmp_path: Path, behaviour: Behaviour) -> None:
    started = time.monotonic()
    _, backend = made(tmp_path, behaviour)
    with backend:
        text, options = gemv()
        kernel = backend.load(text, name="gemv", options={**options, **behaviour.options}, outputs=(2,))
        assert isinstance(kernel, XrtKernel), kernel
        weight, vector = inputs()
        bound = kernel.bind({0: weight})
        run = bound.run({1: vector})
        if behaviour.at == "second run":
            assert run.ok, run.findings
            run = bound.run({1: vector})
    assert time.monotonic() - started < NOT_HUNG_S
    assert run.ok == behaviour.ok
    assert run.ran_on == "npu"
    assert_said(run.findings, behaviour)
    if not run.ok and not behaviour.code.startswith("output-"):
        assert not run.outputs, "what a failed run left in its buffers is not an output"


@pytest.mark.parametrize("behaviour", TOLERATED, ids=name)
def test_other_ways_of_succeeding_succeed(tmp_path: Path, behaviour: Behaviour) -> None:
    _, backend = made(tmp_path, behaviour)
    with backend:
        text, options = gemv()
        kernel = backend.load(text, name="gemv", options=options, outputs=(2,))
        assert isinstance(kernel, XrtKernel)
        weight, vector = inputs()
        run = kernel.bind({0: weight}).run({1: vector})
    assert isinstance(run, KernelRun)
    assert run.ok, run.findings
