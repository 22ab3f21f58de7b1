"""A deployment: a model taken through eight gated phases in one workspace, every event in a ledger.

>>> from npu_tools.deployment.ledger import Ledger, verify
"""
