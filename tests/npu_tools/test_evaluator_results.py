"""Kept arrays against arrays made again: references, blocks and logits that were edited, copied, cut or of other weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npu_tools.architectures import Dimensions, read_config
from npu_tools.deployment.ledger import Ledger
from npu_tools.deployment.site import config_digest
from npu_tools.deployment.workspace import file_digest
from npu_tools.evaluator import results
from npu_tools.evaluator.claims import Claims, read_claims
from npu_tools.evaluator.honest import TINY
from npu_tools.evaluator.planting import Planted
from npu_tools.models.weights import open_weights
from npu_tools.oracle import Decomposition, stage_path

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
TOKENS = [3, 141, 59, 265, 35, 89]
STEPS = 3
WEIGHTS = open_weights("random:7", TINY)


def model(source: Any = WEIGHTS) -> Decomposition:
    dims = read_config(TINY)
    assert isinstance(dims, Dimensions)
    return Decomposition(dims, source)


def device(array: Any, seed: int) -> Any:
    """FP32 as a bf16 path leaves it: about a per cent off, and rounded."""
    rng = np.random.default_rng(seed)
    near = array + 0.01 * np.abs(array).mean() * rng.standard_normal(array.shape).astype(np.float32)
    return near.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of which only the arrays matter: reference, block, and the logits of one prompt."""
    folder = tmp_path_factory.mktemp("results") / "honest"
    reference = folder / "results/reference/stages-1"
    block, gate = folder / "results/phase_2/block_01/layer_00", folder / "results/phase_3/model_01"
    greedy = folder / "results/reference/greedy-1"
    for place in (reference, block, gate, greedy):
        place.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(TINY)), encoding="utf-8")
    rows: list[Any] = []
    context = list(TOKENS)
    for layer, stage, array in model().stages(TOKENS):
        path = reference / stage_path(layer, stage)
        path.parent.mkdir(exist_ok=True)
        np.save(path, array)
        if layer == 0:
            np.save(block / f"{stage}.npy", device(array, 1))
    for _ in range(STEPS):
        *_, (_, _, logits) = model().stages(context)
        rows.append(logits[0])
        context.append(int(logits[0].argmax()))
    np.save(greedy / "prompt_00_logits.npy", device(np.stack(rows), 2))
    np.save(gate / "prompt_00_logits.npy", device(np.stack(rows), 3))
    for place, request in (
        (reference, {"kind": "stages", "tokens": TOKENS}),
        (greedy, {"kind": "greedy", "prompts": [TOKENS], "steps": STEPS}),
    ):
        (place / "request.json").write_text(json.dumps({"request": request, "answer": {}}), encoding="utf-8")
    _ledger(folder, block, gate)
    return folder


def _ledger(folder: Path, block: Path, gate: Path) -> None:
    ledger = Ledger.open(folder / "ledger.jsonl")
    opened = {
        "model": "tiny", "config_digest": config_digest(TINY), "weights": "random:7", "seq_len": 64, "layers": 2,
        "backend": "emulator", "convention": "head", "prompts": 1, "steps": STEPS,
    }  # fmt: skip
    ledger.append("opened", None, opened)
    output, exact = np.load(block / "output.npy"), dict(model().block(0, model().embedding(TOKENS)))["output"]
    error = float(np.abs(output - exact).mean() / np.abs(exact).mean())
    for phase, name, place, subject, metrics in (
        (2, "block", block, {"tokens": TOKENS, "length": len(TOKENS)}, {"stages": {"output": {"mean_rel_l1": error}}}),
        (3, "model", gate, {"prompts": [{"tokens": TOKENS}], "steps": STEPS}, {}),
    ):
        digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in sorted(place.glob("*.npy"))}
        body = {
            "gate": name, "number": 1, "subject": subject, "passed": True, "metrics": metrics,
            "criteria": [{"name": "token_sets"}], "digests": {"results": digests},
        }  # fmt: skip
        ledger.append("phase", phase, {"state": "started"})
        ledger.append("attempt", phase, body)
        ledger.append("phase", phase, {"state": "passed"})


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Planted:
    return Planted.copy(honest, tmp_path / "copy", KERNELS)


def said(copy: Planted) -> set[str]:
    claims: Claims = read_claims(copy.folder, KERNELS)
    made = results.Made(model(), WEIGHTS, np.random.default_rng(0), 60.0)
    audits = (results.audit_reference, results.audit_block, results.audit_tokens)
    return {reason.code for audit in audits for reason in audit(claims, made)}


def test_honest_arrays_are_not_accused(copy: Planted) -> None:
    assert said(copy) == set()


def _reference(copy: Planted) -> None:
    path = copy.folder / "results/reference/stages-1/layer_00/output.npy"
    np.save(path, np.load(copy.folder / "results/phase_2/block_01/layer_00/output.npy"))


def _other_weights(copy: Planted) -> None:
    path = copy.folder / "results/reference/stages-1/embedding.npy"
    np.save(path, model(open_weights("random:8", TINY)).embedding(TOKENS))


def _copied_block(copy: Planted) -> None:
    for path in sorted((copy.folder / "results/phase_2/block_01/layer_00").glob("*.npy")):
        np.save(path, np.load(copy.folder / "results/reference/stages-1/layer_00" / path.name))


def _copied_logits(copy: Planted) -> None:
    path = copy.folder / "results/phase_3/model_01/prompt_00_logits.npy"
    np.save(path, np.load(copy.folder / "results/reference/greedy-1/prompt_00_logits.npy"))


def _short_block(copy: Planted) -> None:
    path = copy.folder / "results/phase_2/block_01/layer_00/output.npy"
    np.save(path, np.load(path)[:3])


def _other_figures(copy: Planted) -> None:
    path = copy.folder / "results/phase_2/block_01/layer_00/output.npy"
    np.save(path, np.load(path) * np.float32(1.2))


def _other_logits(copy: Planted) -> None:
    path = copy.folder / "results/phase_3/model_01/prompt_00_logits.npy"
    np.save(path, -np.load(path))


def _shallow(copy: Planted) -> None:
    one = model()
    *_, (_, _, logits) = one.stages(TOKENS, depth=1)
    path = copy.folder / "results/phase_3/model_01/prompt_00_logits.npy"
    np.save(path, device(np.repeat(logits, STEPS, 0), 4))


def _missing_logits(copy: Planted) -> None:
    (copy.folder / "results/phase_3/model_01/prompt_00_logits.npy").unlink()


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (_reference, "reference_edited"),
        (_other_weights, "wrong_weights"),
        (_copied_block, "copied_reference"),
        (_copied_logits, "copied_reference"),
        (_short_block, "sequence_shortened"),
        (_other_figures, "results_contradict"),
        (_other_logits, "results_contradict"),
        (_shallow, "layers_skipped"),
        (_missing_logits, "results_missing"),
    ],
)
def test_arrays_that_are_not_what_they_must_be_are_told_apart(
    copy: Planted, plant: Callable[[Planted], None], code: str
) -> None:
    plant(copy)
    copy.resign()
    assert code in said(copy)
