"""The oracle: what a model must compute, in FP32 and kernel by kernel, and what Hugging Face makes of it.

>>> request = StagesRequest(config=config, weights="random:7", tokens=[1, 2, 3], folder="reference")
>>> result = run_oracle(request, timeout_s=600)
>>> result.ok, result.answer["criteria"]
>>> np.load("reference/layer_00/attention.npy").shape            # [seq, q_dim]

`run_oracle` works in a child process, the only place where torch and transformers are imported. `Decomposition` is the
FP32 model in numpy; it can be used anywhere and needs neither.
"""

from npu_tools.oracle.child import OracleResult, run_oracle
from npu_tools.oracle.decompose import ONCE, Decomposition, stage_names, stage_path
from npu_tools.oracle.requests import GreedyRequest, StagesRequest, WeightsSource

__all__ = [
    "ONCE",
    "Decomposition",
    "GreedyRequest",
    "OracleResult",
    "StagesRequest",
    "WeightsSource",
    "run_oracle",
    "stage_names",
    "stage_path",
]
