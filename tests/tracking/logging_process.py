"""A training loop that only logs: run by `test_mlflow_server.py`, killed by it, and run again.

usage: logging_process.py RUN_DIR TRACKING_URI TOTAL_STEPS
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

from pld_ray.files.atomic import write_atomically
from pld_ray.tracking.mlflow_record import read_record
from pld_ray.tracking.mlflow_run import MlflowRun

CHECKPOINT_INTERVAL = 20


def main(run_dir: pathlib.Path, uri: str, total: int) -> None:
    checkpoint = run_dir / "checkpoint.json"
    step = json.loads(checkpoint.read_text())["step"] if checkpoint.is_file() else 0
    if read_record(run_dir) is None:
        run = MlflowRun(run_dir, tracking_uri=uri, experiment_name="killed")
    else:
        run = MlflowRun.resume(run_dir)
        run.journal.restore(step)
        run.restored(step)
    while step < total:
        step += 1
        values = {"loss": 1.0 / step, "time/wall_s": time.monotonic()}
        run.log_metrics(values | ({"eval": 0.5} if step % 10 == 0 else {}), step)
        if step % CHECKPOINT_INTERVAL == 0:
            write_atomically(checkpoint, json.dumps({"step": step}))
        time.sleep(0.005)
    run.finish()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
