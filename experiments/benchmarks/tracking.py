"""What an outage of the MLflow server costs a loop that logs: points, and time in the log call.

A loop logs 40 metrics every 0.2 s to a real `mlflow server`. Once the server stays, once it is
killed for `--outage_s` seconds and started again on the same store. Afterwards the server is asked
how often it holds each point.

    python experiments/benchmarks/tracking.py [--outage_s 60] [--json]

- `points_lost`, `points_doubled`: of those logged, not there; there more than once.
- `longest_log_ms`, `median_log_ms`: time of one call of `log_metrics` with all 40 values.
- `drain_s`: from the end of the loop until the server has everything.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from typing import Any

from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.quiet import quick_mlflow

NUM_METRICS = 40
INTERVAL_S = 0.2
BEFORE_S = 10.0
AFTER_S = 10.0


class Server:
    """An `mlflow server` on sqlite, on a port that outlives it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store, artifacts = self.folder / "mlflow.db", self.folder / "artifacts"
        command = [sys.executable, "-m", "mlflow", "server", "--workers=1", "--host=127.0.0.1"]
        command += [f"--port={self.port}", f"--backend-store-uri=sqlite:///{store}"]
        command += [f"--artifacts-destination={artifacts}"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError(f"mlflow server does not answer; see {self.folder / 'server.log'}")

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def measure(
    server: Server, run_dir: pathlib.Path, outage_s: float, window_s: float
) -> dict[str, Any]:
    """Log for `window_s` seconds; with an outage the server is away for `outage_s` of them."""
    run = MlflowRun(run_dir, tracking_uri=server.uri, experiment_name="outage")
    start = time.monotonic()
    events = []
    if outage_s:
        events = [(BEFORE_S, server.kill), (BEFORE_S + outage_s, server.start)]
    durations: list[float] = []
    step = 0
    while (now := time.monotonic() - start) < window_s:
        if events and now >= events[0][0]:
            events.pop(0)[1]()
        step += 1
        values = {f"learner/metric_{i:02d}": step + i / 7 for i in range(NUM_METRICS)}
        clock = time.perf_counter()
        run.log_metrics(values, step)
        durations.append(time.perf_counter() - clock)
        time.sleep(max(0.0, start + step * INTERVAL_S - time.monotonic()))
    waiting = run.num_queued
    server.wait()
    clock = time.monotonic()
    run.finish(patience_s=60.0)
    drain_s = time.monotonic() - clock
    counts = stored_points(server.uri, run.run_id)
    logged = {
        (f"learner/metric_{i:02d}", s) for i in range(NUM_METRICS) for s in range(1, step + 1)
    }
    return {
        "outage_s": outage_s,
        "points_logged": len(logged),
        "points_lost": len(logged - counts.keys()),
        "points_doubled": sum(n - 1 for n in counts.values()),
        "points_waiting_at_the_end": waiting,
        "longest_log_ms": round(1e3 * max(durations), 2),
        "median_log_ms": round(1e3 * statistics.median(durations), 3),
        "loop_hz": round(step / window_s, 2),
        "drain_s": round(drain_s, 1),
    }


def stored_points(uri: str, run_id: str) -> Counter[tuple[str, int]]:
    """How often the server holds each (metric, step)."""
    from mlflow.tracking import MlflowClient

    with quick_mlflow(60):
        client = MlflowClient(uri, uri)
        return Counter(
            (key, point.step)
            for key in client.get_run(run_id).data.metrics
            for point in client.get_metric_history(run_id, key)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outage_s", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    window_s = BEFORE_S + args.outage_s + AFTER_S
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder))
        server.start()
        try:
            server.wait()
            rows = {
                "without": measure(server, pathlib.Path(folder) / "without", 0.0, window_s),
                "with": measure(server, pathlib.Path(folder) / "with", args.outage_s, window_s),
            }
        finally:
            server.kill()
    if args.json:
        print(json.dumps({**rows["with"], "without_outage": rows["without"]}, indent=1))
        return
    width = max(map(len, rows["with"]))
    print(f"{'':{width}}  {'no outage':>12}  {'outage':>12}")
    for name, value in rows["with"].items():
        print(f"{name:{width}}  {rows['without'][name]:>12}  {value:>12}")


if __name__ == "__main__":
    main()
