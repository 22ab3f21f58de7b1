"""Hypothesis profiles: a sample by default, `HERDBOOK_EXAMPLES=20000` for a long run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "herdbook",
    max_examples=int(os.environ.get("HERDBOOK_EXAMPLES", "60")),
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
settings.load_profile("herdbook")
