"""Fine-tuning in several processes against one, and one against LeRobot's own training script.

    python experiments/benchmarks/sharded.py --json

- `two_vs_one_max_diff`: two gloo processes on CPU against one, a tiny ACT with dropout,
  micro-batches with unequal padding, parameters that do not divide by two, clipping, AdamW and the
  average: the greatest difference of any weight, average or moment after four updates. The bar is
  1e-6.
- `resume_equal`: whether components go from two processes to one and back to two and end with the
  same weights, to 1e-6, as two processes that nobody stopped.
- `param_memory_share`: the greatest share of the parameters' bytes that a process holds between two
  updates. The bar is 0.6.
- `activation_checkpointing_share`: the most that an update of a tiny pi05 takes when activations
  are computed again, over what it takes when they are kept.
- `vs_lerobot_train`: samples per second of `pld-ray finetune`'s trainer over those of
  `lerobot_train`, the lesser of ACT and a tiny SmolVLA, see `sharded_lerobot.py`. The bar is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/sharded"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/policies"))

import torch
from several_ranks import FIGURES, difference, train_in_all_ways
from sharded_lerobot import versus_lerobot
from tiny_trainers import activation_checkpointing_share

SAME = 1e-6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3, help="of each contestant")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # LeRobot prints what it loads
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        folder = pathlib.Path(name)
        act = versus_lerobot("act", folder / "act", 64, arguments.turns, 30)
        smolvla = versus_lerobot("smolvla", folder / "smolvla", 8, arguments.turns, 12)
        done = folder / "ranks"
        done.mkdir()
        train_in_all_ways(done)
        figures = json.loads((done / "two" / FIGURES).read_text())
        result = {
            "two_vs_one_max_diff": difference(done / "one", done / "two"),
            "resume_equal": difference(done / "two", done / "two-last") <= SAME,
            "param_memory_share": round(figures["share"], 3),
            "activation_checkpointing_share": round(
                activation_checkpointing_share("pi05", folder / "memory"), 2
            ),
            "vs_lerobot_train": round(min(act, smolvla), 2),
            "vs_lerobot_train_act": round(act, 2),
            "vs_lerobot_train_smolvla": round(smolvla, 2),
        }
    if arguments.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:26} {value}")
    print("bars: two_vs_one_max_diff <= 1e-6, param_memory_share <= 0.6, vs_lerobot_train >= 1")


if __name__ == "__main__":
    main()
