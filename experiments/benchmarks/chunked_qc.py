"""The updates of ColinQiyangLi/qc on the shapes of `chunked.py`; it runs in a Python of its own.

Started by `chunked.py --qc_python=... --qc_repo=...`; that Python has jax, flax, optax, distrax and
ml_collections, the repository its `agents` and `utils`. Each line of the input is a number of
updates and `drawn`, of batches drawn as its `main.py` does, or `given`, of one batch; each line of
the output the seconds that they took.

    chunked_qc.py REPOSITORY SHAPES-AS-JSON
"""

from __future__ import annotations

import functools
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
    from utils.datasets import Dataset

    rng = np.random.default_rng(0)
    rows, length = shapes["rows"], shapes["episode_length"]
    ends = (np.arange(rows) % length == length - 1).astype(np.float32)
    observations = rng.standard_normal((rows, shapes["observation"]), dtype=np.float32)
    actions = rng.uniform(-1, 1, (rows, shapes["action"])).astype(np.float32)
    data = Dataset.create(
        observations=observations,
        actions=actions,
        next_observations=np.roll(observations, -1, 0),
        rewards=np.zeros(rows, np.float32),
        masks=np.ones(rows, np.float32),
        terminals=ends,
    )
    config = get_config()
    config.update(
        {
            "batch_size": shapes["batch"],
            "horizon_length": shapes["horizon"],
            "actor_hidden_dims": (shapes["width"],) * 2,
            "value_hidden_dims": (shapes["width"],) * 2,
            "num_qs": shapes["critics"],
            "actor_type": "best-of-n",
            "actor_num_samples": shapes["candidates"],
            "flow_steps": shapes["flow_steps"],
            "q_agg": "min",
        }
    )
    agent = ACFQLAgent.create(0, observations[0], actions[0], config)
    draw = functools.partial(
        data.sample_sequence, shapes["batch"], shapes["horizon"], config["discount"]
    )
    given = draw()
    for line in sys.stdin:
        number, kind = line.split()
        began = time.perf_counter()
        for _ in range(int(number)):
            agent, _ = agent.update(draw() if kind == "drawn" else given)
        jax.block_until_ready(agent.network.params)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
