"""Copy what a finished run shows into `experiments/results/`, without paths of the machine.

python -m experiments.collect_results outputs/demo demo
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil

RESULTS = pathlib.Path(__file__).parent / "results"
LOCAL_KEYS = ("checkpoint", "mlflow_tracking_uri", "mlflow_run_id")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=pathlib.Path)
    parser.add_argument("name")
    args = parser.parse_args()
    target = RESULTS / args.name
    target.mkdir(parents=True, exist_ok=True)
    summary = json.loads((args.run_dir / "summary.json").read_text())
    kept = {key: value for key, value in summary.items() if key not in LOCAL_KEYS}
    (target / "summary.json").write_text(json.dumps(kept, indent=1) + "\n")
    for name in ("learning_curve.png", "metrics.jsonl"):
        shutil.copy(args.run_dir / name, target / name)
    print(f"{target}: base {kept['base_success']:.0%} -> {kept['residual_success']:.0%}")


if __name__ == "__main__":
    main()
