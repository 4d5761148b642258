"""How hypothesis searches, in all tests.

By default the same examples every time, so that a failure in CI is a failure everywhere. For a long
search with new examples: ``pytest tests/fuzz --hypothesis-profile=long``.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("default", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "long",
    max_examples=20_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")
