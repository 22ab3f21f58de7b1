"""A model on the emulated or real NPU: its plan of kernels, its weights, its tokens.

>>> weights = open_weights("random:7", config)
>>> weights.tensor("model.norm.weight").shape
"""

from npu_tools.models.weights import Weights, find_config, open_weights

__all__ = ["Weights", "find_config", "open_weights"]
