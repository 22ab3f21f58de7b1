"""Running what a deployment brought, in a process of its own: `python -m npu_tools.evaluator.worker ASKED ANSWERED`.

Recipe code is somebody else's: it may change whatever it reaches in its process. So this process only computes; inputs
come from files, outputs go to files, and the judging is done by who asked.
"""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.arrays import read_arrays, write_arrays
from npu_tools.errors import NpuToolsError
from npu_tools.jobs.records import write_json


def main(asked: Path, answered: Path) -> int:
    """Do every job of the request, each with its own answer."""
    request = json.loads(asked.read_text(encoding="utf-8"))
    answers: list[dict[str, Any]] = []
    for job in request["jobs"]:
        try:
            answers.append(_JOBS[job["kind"]](job))
        except NpuToolsError as error:
            answers.append({"ok": False, "reason": str(error)})
        except Exception as error:  # somebody else's code: whatever it raises is its answer
            traceback.print_exc()
            answers.append({"ok": False, "reason": f"{type(error).__name__}: {error}"})
        write_json(answered, {"answers": answers})
    return 0


def run_kernel(job: Mapping[str, Any]) -> dict[str, Any]:
    """One recipe at one shape on each of the given inputs; outputs of the model's tensors beside them."""
    from npu_tools.air import parse_program
    from npu_tools.emulator.numerics import Numerics
    from npu_tools.emulator.run import run_program
    from npu_tools.recipes import recipe

    found = recipe(Path(job["kernels"]), job["kernel"])
    resolved = found.resolve(job["shape"], job["settings"])
    text = found.program(resolved)
    program = parse_program(text, f"{found.name}-{resolved.extents}.mlir")
    arguments = found.arguments(resolved)
    wall = 0.0
    for source, target in job["runs"]:
        tensors = read_arrays(Path(source))
        dtypes = {one.name: one.dtype for one in found.tensors(resolved)}
        arranged = found.arrange({name: values.astype(dtypes[name]) for name, values in tensors.items()}, resolved)
        given = {f"arg{at}": arranged[one.name] for at, one in enumerate(arguments) if one.role in ("input", "static")}
        result = run_program(program, given, numerics=Numerics("faithful"), timeout_s=job["timeout_s"])
        wall += result.wall_s
        if not result.ok:
            failed = next(one for one in result.findings if one.severity == "error")
            return {"ok": False, "reason": f"{failed.code}: {failed.message}"}
        outputs = {one.name: result.outputs[f"arg{at}"] for at, one in enumerate(arguments) if one.role == "output"}
        write_arrays(Path(target), {n: np.asarray(v) for n, v in found.collect(outputs, resolved).items()})
    return {
        "ok": True, "program": hashlib.sha256(text.encode()).hexdigest(), "settings": dict(resolved.settings),
        "numbers": _constants(text), "wall_s": wall,
    }  # fmt: skip


def _constants(text: str) -> int:
    """The most numbers a dense constant of the program holds, by what its text takes."""
    longest = 0
    for piece in text.split("dense<")[1:]:
        body = piece.split(">", 1)[0]
        longest = max(longest, body.count(",") + 1, len(body) // 8 if body.startswith('"0x') else 0)
    return longest


def run_host(job: Mapping[str, Any]) -> dict[str, Any]:
    """The host's part alone: what it makes of outputs that are all zero, and of the same outputs after other inputs."""
    from npu_tools.recipes import recipe

    found = recipe(Path(job["kernels"]), job["kernel"])
    resolved = found.resolve(job["shape"], job["settings"])
    outputs = [one for one in found.arguments(resolved) if one.role == "output"]
    rng = np.random.default_rng(int(job["seed"]))
    zeros = {one.name: np.zeros(one.shape, one.dtype) for one in outputs}
    values = {one.name: rng.standard_normal(one.shape, np.float32).astype(one.dtype) for one in outputs}
    found.arrange(found.inputs(resolved, int(job["seed"])), resolved)
    empty = found.collect(zeros, resolved)
    before = found.collect(values, resolved)
    found.arrange(found.inputs(resolved, int(job["seed"]) + 1), resolved)
    after = found.collect(values, resolved)
    return {
        "ok": True,
        "zero": all(not np.asarray(one, np.float32).any() for one in empty.values()),
        "steady": all(np.array_equal(np.asarray(before[n]), np.asarray(after[n])) for n in before),
    }


def run_model(job: Mapping[str, Any]) -> dict[str, Any]:
    """Prompts through the deployed model: logits of every step, and the outputs of the layers asked for."""
    from npu_tools.architectures import Dimensions, read_config
    from npu_tools.backends import EmulatorBackend
    from npu_tools.deployment.metering import Meter, Options
    from npu_tools.deployment.world import RealWorld, RunnerRequest
    from npu_tools.gate.tokens import top_k
    from npu_tools.models.weights import open_weights

    dims = read_config(job["config"])
    assert isinstance(dims, Dimensions)
    folder, layers, kernels = Path(job["folder"]), set(job["layers"]), Path(job["kernels"])
    weights = open_weights(job["weights"], job["config"])
    static = {name: tuple(positions) for name, positions in job["static"].items()}
    request = RunnerRequest(dims, int(job["seq_len"]), job["fused"] or False, job["settings"], kernels)
    runner = RealWorld(kernels).runner(request, weights, Meter(EmulatorBackend(), Options(True, static)))
    seen: set[int] = set()
    for at, prompt in enumerate(job["prompts"]):

        def tap(layer: int | None, stage: str, array: Any, at: int = at) -> None:
            if layer is not None:
                seen.add(layer)
            if at == 0 and layer in layers and stage == "output":
                np.save(folder / f"layer_{layer:02d}_output.npy", np.asarray(array, np.float32))

        rows = [np.asarray(runner.prefill(prompt, tap).logits, np.float32).reshape(-1)]
        while len(rows) < int(job["steps"]):
            rows.append(np.asarray(runner.decode(top_k(rows[-1], 1)[0]), np.float32).reshape(-1))
        np.save(folder / f"prompt_{at:02d}.npy", np.stack(rows))
    return {"ok": True, "layers": len(seen)}


_JOBS = {"kernel": run_kernel, "host": run_host, "model": run_model}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
