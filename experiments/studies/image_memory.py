"""Resident memory of a run from cameras against what its replay was predicted to take.

Rows are collected by the base policy from two cameras of 128 x 128 and enter the learner's replay
as uint8 images (an encoder that is trained). The simulation runs in a process of its own; measured
is the growth of the learner's process. Needs a GL library.

    python -m experiments.studies.image_memory --rows=3000
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib

import ray

from pld_ray.replay import FrameRing
from pld_ray.rllib.config import ResidualSACConfig


def resident_bytes() -> int:
    """Of this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3_000)
    args = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    config = (
        ResidualSACConfig()
        .environment(env_config={"cameras": ["image", "image2"], "image_size": 128})
        .env_runners(num_env_runners=1, num_cpus_per_env_runner=0.5)
        .training(
            vision_encoder_name="cnn",
            freeze_vision_encoder=False,
            offline_episodes=0,
            warmup_steps=200,
            online_capacity=args.rows,
            utd=0.0,
            residual_scale=0.0,
            use_probing=False,
        )
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()
    ring: FrameRing = algorithm.learner_group._learner.replay.online
    algorithm.initialize()  # 200 rows: what else the process allocates is there by now
    before, rows_before = resident_bytes(), ring.num_rows
    while ring.num_rows < 0.9 * args.rows:
        algorithm.training_step()
        print(f"{ring.num_rows} rows", flush=True)
    grown = resident_bytes() - before
    predicted = FrameRing.predict_nbytes(ring.schema, args.rows)
    predicted = predicted * (ring.num_rows - rows_before) / args.rows
    figures = {
        "rows": ring.num_rows - rows_before,
        "predicted_mb": round(predicted / 1e6, 1),
        "grown_mb": round(grown / 1e6, 1),
        "grown_over_predicted": round(grown / predicted, 3),
    }
    print(json.dumps(figures))
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
