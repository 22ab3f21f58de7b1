"""Phase 1: every kernel at every shape of the model, as the plan has it and as phase 3 begins with it.

Here one launch a kernel is gated; phases 4 and 5 gate the merged ELFs they try.
"""

from __future__ import annotations

from typing import Any

from npu_tools.deployment.kernel_gate import gate_kernel, passed_before
from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.site import Ended, Site
from npu_tools.deployment.steps import BASELINE, Deployed
from npu_tools.deployment.workspace import write_json
from npu_tools.deployment.world import Plan


def run(site: Site) -> Ended:
    """All kernels, the failed ones told together; the phase passes when all do."""
    dims = site.dims()
    plan = site.world.plan(site.request(dims, fused=False))
    baseline = site.world.plan(Deployed.of(site, BASELINE).request)  # attention as phase 3 begins with it
    uses = Plan(
        (*plan.prefill, *baseline.prefill), (*plan.decode, *baseline.decode), (*plan.head, *baseline.head)
    ).distinct()  # fmt: skip
    backend = site.backend()
    known = passed_before(site)
    failed: list[str] = []
    rows: list[dict[str, Any]] = []
    for number, (use, serves) in enumerate(uses):
        site.pause()
        site.teller.progress(number, len(uses), f"{use.kernel} {use.extents}")
        entry = gate_kernel(site, use, serves, backend, known)
        body = entry.body
        if not body["passed"]:
            failed.append(f"{use.kernel} {use.extents}: {body['diagnosis']['message']}")
        rows.append(_row(entry))
    write_json(site.workspace.results(1) / "registry.json", {"rows": rows})
    if failed:
        return Ended(False, f"{len(failed)} of {len(uses)} kernels do not pass: {failed[0]}")
    return Ended(True, f"{len(uses)} kernels at the model's shapes pass")


def _row(entry: Entry) -> dict[str, Any]:
    subject, body = entry.body["subject"], entry.body
    return {
        "kernel": subject["kernel"], "shape": subject["shape"], "settings": subject["settings"], "passed": body["passed"],
        "mean_rel_l1": body["metrics"].get("mean_rel_l1"), "modelled_us": body.get("modelled_us"),
        "measured_us": body.get("measured_us"), "ran_on": body["backend"], "attempt": entry.seq,
    }  # fmt: skip
