"""What a deployment adds to its kernels: four numbers fitted over measured models, none of them a model's own.

Prefill: launches inside ELFs against alone (npu_scale), attention between other ELFs (attention_scale).
Decode: GEMVs inside ELFs (decode_scale), and one launch with its share of a dispatch (launch_ms).
Host copies and CPU steps are not fitted; they stand in `predict` with their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class WorkLike(Protocol):
    """What overheads scale: see `predict.Work`; ms and counts."""

    @property
    def npu(self) -> float: ...
    @property
    def attention(self) -> float: ...
    @property
    def launches(self) -> int: ...
    @property
    def host(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Overheads:
    """Fitted overheads. *_log_*: 80 % band of log(measured / predicted) with the model left out, for ms."""

    npu_scale: float
    attention_scale: float
    decode_scale: float
    launch_ms: float
    ttft_log_low: float
    ttft_log_high: float
    token_log_low: float
    token_log_high: float
    basis: str

    def prefill_parts(self, work: WorkLike) -> dict[str, float]:
        """ms by part."""
        return {
            "npu": self.npu_scale * work.npu,
            "attention": self.attention_scale * work.attention,
            "host": work.host,
        }

    def decode_parts(self, work: WorkLike) -> dict[str, float]:
        """ms by part."""
        return {
            "npu": self.decode_scale * work.npu,
            "launches": self.launch_ms * work.launches,
            "host": work.host,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Overheads:
        """What `dataclasses.asdict` gave."""
        numbers = {name: float(str(value)) for name, value in data.items() if name != "basis"}
        return cls(**numbers, basis=str(data["basis"]))
