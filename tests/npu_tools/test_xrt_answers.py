"""compile and run over the device answer as over the emulator: the same fields, the same arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npu_tools.compile import compile_program, read_artefact
from npu_tools.errors import UnusableInput
from npu_tools.jobs.work import run as run_work
from npu_tools.requests import CompileRequest, RunRequest
from tests.npu_tools.xrt_support import gemv, inputs
from tests.stand_in.machine import StandIn


class Telling:
    """A teller that never stops."""

    def __init__(self, folder: Path, stop: Callable[[], bool] = lambda: False) -> None:
        self.folder, self._stop = folder, stop

    def cancelled(self) -> bool:
        return self._stop()

    def progress(self, done: float, total: float, note: str = "") -> None:
        pass


def test_compile_answers_with_the_same_fields_on_both_backends(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    request = {"program": {"text": gemv()[0], "name": "gemv.mlir"}, "cache": str(tmp_path / "cache")}
    emulated = compile_program(CompileRequest.model_validate(request))
    real = compile_program(
        CompileRequest.model_validate({**request, "backend": "xrt", "toolchain": machine.toolchain.model_dump()})
    )
    assert set(real) == set(emulated)
    assert real["ok"], real["findings"]
    assert real["arguments"] == emulated["arguments"]
    assert read_artefact(Path(real["artefact"])) == gemv()[0]
    json.dumps(real)


def test_run_answers_with_the_same_fields_and_arrays_on_both_backends(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    weight, vector = inputs()
    given = tmp_path / "in.npz"
    np.savez(given, arg0=weight.astype(np.float32), arg1=vector.astype(np.float32))
    request = {"program": {"text": gemv()[0], "name": "gemv.mlir"}, "inputs": str(given)}
    answers = {}
    for backend in ("emulator", "xrt"):
        more = (
            {"toolchain": machine.toolchain.model_dump(), "cache": str(tmp_path / "cache")} if backend == "xrt" else {}
        )
        asked = RunRequest.model_validate(
            {**request, **more, "backend": backend, "outputs": str(tmp_path / f"{backend}.npz")}
        )
        answers[backend] = run_work(asked, Telling(tmp_path))
    assert set(answers["xrt"]) == set(answers["emulator"])
    assert answers["xrt"]["ok"], answers["xrt"]["diagnostics"]
    assert (answers["xrt"]["ran_on"], answers["emulator"]["ran_on"]) == ("npu", "emulator")
    assert answers["xrt"]["measured_us"] > 0
    assert answers["emulator"]["measured_us"] is None
    ours, theirs = (np.load(tmp_path / f"{name}.npz") for name in ("xrt", "emulator"))
    assert sorted(ours.files) == sorted(theirs.files)
    np.testing.assert_array_equal(ours["arg2"], theirs["arg2"])


def test_a_program_is_measured_beside_its_run_when_asked_and_never_on_the_emulator(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    base = {"program": {"text": gemv()[0]}, "profile": True, "outputs": str(tmp_path / "o.npz")}
    more = {"backend": "xrt", "toolchain": machine.toolchain.model_dump(), "cache": str(tmp_path / "cache")}
    answer = run_work(RunRequest.model_validate({**base, **more}), Telling(tmp_path))
    assert answer["ok"], answer["diagnostics"]
    assert (answer["profile"]["label"], answer["profile"]["iterations"]) == ("measured", 20)
    with pytest.raises(UnusableInput, match="modelled"):
        run_work(RunRequest.model_validate(base), Telling(tmp_path))


def test_what_only_the_emulator_does_is_refused_in_words(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    base = {"program": {"text": gemv()[0]}, "backend": "xrt", "toolchain": machine.toolchain.model_dump()}
    for more in ({"rounding": True}, {"timeline": "t.svg"}, {"numerics": "f32"}):
        with pytest.raises(UnusableInput, match="emulator"):
            run_work(RunRequest.model_validate({**base, **more}), Telling(tmp_path))
    with pytest.raises(UnusableInput, match="herdbook doctor"):
        run_work(RunRequest.model_validate({**base, "toolchain": None}), Telling(tmp_path))


def test_a_program_that_never_reached_the_device_did_not_run_on_it(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"missing": ["peano"]})
    more = {"backend": "xrt", "toolchain": machine.toolchain.model_dump(), "cache": str(tmp_path / "cache")}
    answer = run_work(RunRequest.model_validate({"program": {"text": gemv()[0]}, **more}), Telling(tmp_path))
    assert not answer["ok"]
    assert answer["ran_on"] is None
    assert answer["measured_us"] is None
