"""How a model is deployed, as options that optimisation switches one at a time, and what each way takes.

merge         several kernels in one ELF: fewer dispatches
buffer_reuse  weights written once and kept, not at every call
layout        attention takes seq-first tensors where it can: the host transposes nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from npu_tools.deployment.measuring import measure_plan
from npu_tools.deployment.metering import Meter
from npu_tools.deployment.site import Site
from npu_tools.deployment.state import State
from npu_tools.deployment.timing import ModelTime, TimingOptions, model_time
from npu_tools.deployment.token_gate import GateRun
from npu_tools.deployment.world import KernelUse, Merged, RunnerRequest


@dataclass(frozen=True, slots=True)
class Ways:
    """What is switched on."""

    merge: bool = False
    buffer_reuse: bool = False
    layout: bool = False

    def with_step(self, name: str) -> Ways:
        """With one more switched on."""
        return replace(self, **{name: True})

    def as_dict(self) -> dict[str, bool]:
        """By name."""
        return {"merge": self.merge, "buffer_reuse": self.buffer_reuse, "layout": self.layout}


BASELINE = Ways()
"""Phase 3: one launch a dispatch, weights written at every call, attention head-first."""


def kept(state: State, number: int) -> Ways:
    """What a phase kept so far."""
    return Ways(**{name: value for name, value in state.kept.get(number, {}).items() if name in BASELINE.as_dict()})


def combined(site: Site, decode: Ways) -> Deployed:
    """The model with what phase 4 kept for prefill, and these ways for decode: what is deployed."""
    prefill = kept(site.state, 4)
    merged: Merged = prefill.merge
    if prefill.merge != decode.merge:
        merged = "prefill" if prefill.merge else "decode"
    ways = Ways(
        prefill.merge or decode.merge, prefill.buffer_reuse or decode.buffer_reuse, prefill.layout or decode.layout
    )
    return Deployed.of(site, ways, merged)


@dataclass(frozen=True, slots=True)
class Times:
    """A prefill and a token, in µs, and whether they were measured or modelled."""

    prefill_us: float
    decode_us: float
    timing: str
    calls: Mapping[str, Any]
    how: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of measured ones: warm-ups, iterations, what is timed, the environment, and the programs."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "prefill_us": round(self.prefill_us, 3), "decode_us": round(self.decode_us, 3), "timing": self.timing,
            **self.calls, **({"measurement": dict(self.how)} if self.how else {}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deployed:
    """A way to deploy, ready to load."""

    ways: Ways
    request: RunnerRequest
    meter: Meter
    kernels: tuple[KernelUse, ...]

    @classmethod
    def of(cls, site: Site, ways: Ways, merged: Merged = False) -> Deployed:
        """The site's model this way; `merged` says of which half the kernels are merged."""
        settings = site.settings()
        if not ways.layout:
            chosen = settings.get("flash_attention", {})
            settings = {**settings, "flash_attention": {"variant": "head-first", **chosen}}
        request = site.request(site.dims(), fused=merged, settings=settings)
        plan = site.world.plan(request)
        return cls(ways, request, site.meter(buffer_reuse=ways.buffer_reuse), (*plan.prefill, *plan.decode, *plan.head))

    @property
    def used(self) -> list[str]:
        """Recipes in use."""
        return sorted({use.kernel for use in self.kernels})

    def time(self, site: Site, gated: GateRun | None = None) -> Times:
        """What it takes: by the cost model; on a device measured, once it has passed its gate.

        Raises:
            NotMeasured: a timed run failed on the device.
        """
        time = self.modelled(site)
        taken = measure_plan(site, site.world.plan(self.request)) if gated is not None and gated.passed else None
        if taken is None:
            return Times(time.prefill_us, time.decode_us, "modelled", time.as_dict())
        time = time.with_kernels(taken.prefill_us, taken.decode_us)
        return Times(time.prefill_us, time.decode_us, "measured", time.as_dict(), taken.how)

    def modelled(self, site: Site) -> ModelTime:
        """The cost model's time of every call."""
        plan = site.world.plan(self.request)
        return model_time(plan, site.dims(), site.kernels(), TimingOptions(self.ways.buffer_reuse))

    def subject(self, site: Site, prompts: Sequence[Sequence[int]], steps: int, what: str = "") -> dict[str, Any]:
        """What an attempt was about; with the calls whose modelled times make up that of `what`."""
        timing: dict[str, Any] = {}
        if what:
            modelled = self.modelled(site)
            calls = modelled.prefill if what == "prefill" else modelled.decode
            timing = {
                "timing": {
                    "layers": site.dims().layers, "calls": [call.as_dict() for call in calls],
                    "host_us": round(modelled.decode_host_us, 3) if what == "decode" else 0.0,
                    "buffer_reuse": self.ways.buffer_reuse,
                }
            }  # fmt: skip
        return timing | {
            "prompts": [{"tokens": list(prompt)} for prompt in prompts], "steps": steps, "layers": site.dims().layers,
            "seq_len": site.seq_len, "recipes": site.recipe_digests(self.used), "settings": self.request.settings,
            "ways": self.ways.as_dict(), "fused": self.request.fused, "static": site.static(),
        }  # fmt: skip
