"""The updates of ColinQiyangLi/qc on the shapes of `chunked.py`; it runs in a Python of its own.

Started by `chunked.py --qc_python=... --qc_repo=...`; that Python has jax, flax, optax, distrax and
ml_collections, the repository its `agents` and `utils`. Each line of the input is a number of
updates, each line of the output the seconds that they took.

    chunked_qc.py REPOSITORY SHAPES-AS-JSON
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np


def main() -> None:
    """Answer until the input ends."""
    sys.path.insert(0, sys.argv[1])
    shapes = json.loads(sys.argv[2])
    import jax
    from agents.acfql import ACFQLAgent, get_config

    rng = np.random.default_rng(0)
    rows, horizon = shapes["batch"], shapes["horizon"]
    observations = rng.standard_normal((rows, shapes["observation"]), dtype=np.float32)
    actions = rng.uniform(-1, 1, (rows, horizon, shapes["action"])).astype(np.float32)
    config = get_config()
    config.update(
        {
            "batch_size": rows,
            "horizon_length": horizon,
            "actor_hidden_dims": (shapes["width"],) * 2,
            "value_hidden_dims": (shapes["width"],) * 2,
            "num_qs": shapes["critics"],
            "actor_type": "best-of-n",
            "actor_num_samples": shapes["candidates"],
            "flow_steps": shapes["flow_steps"],
            "q_agg": "min",
        }
    )
    agent = ACFQLAgent.create(0, observations[0], actions[0, 0], config)
    steps = np.zeros((rows, horizon), np.float32)
    batch = {
        "observations": observations,
        "actions": actions,
        "next_observations": np.repeat(observations[:, None], horizon, 1),
        "rewards": steps,
        "masks": steps + 1,
        "valid": steps + 1,
    }
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            agent, _ = agent.update(batch)
        jax.block_until_ready(agent.network.params)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
