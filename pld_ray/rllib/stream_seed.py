"""Seeds of the episodes that env runners play: no two purposes have the same placements.

A run's own episodes do not begin with those of its collection, which has seeds of its own, and a
policy that was learnt is recorded, and judged, on others than it learnt from.
"""

from __future__ import annotations

import numpy as np

ONLINE, RECORDED, RESTORED = 1, 2, 3
"""What episodes are for: learning, a dataset, and a runner that was lost."""


def stream_seed(purpose: int, *numbers: int) -> int:
    """Seed of episodes to come: what they are for, the run's seed, and what there is already."""
    return int(np.random.SeedSequence([purpose, *numbers]).generate_state(1)[0])
