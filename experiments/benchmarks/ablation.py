"""Baselines and ablations on the embedded task, by the same code path: `pld-ray train`.

Each cell of ablation.yaml beside this file is trained with every seed; finished runs are kept,
interrupted ones resumed. Prints a table, and writes ablation.json and ablation.png into
`--results_dir`, beside the runs by default; the recorded ones are in experiments/results.

    python experiments/benchmarks/ablation.py --seeds=3 --total_steps=20000 --jobs=2
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import yaml

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CELLS = pathlib.Path(__file__).with_name("ablation.yaml")
EVALUATION_INTERVAL = 4_650  # its second multiple is some 5,000 online steps after the collection


def load_cells() -> dict[str, dict[str, Any]]:
    """Each cell's overrides of the defaults: those of `everything`, then its own."""
    document = yaml.safe_load(CELLS.read_text())
    everything = document["everything"]
    cells = {}
    for name, own in document["cells"].items():
        own = own or {}
        if name in document["apart"]:
            cells[name] = own
        else:
            groups = everything.keys() | own.keys()
            cells[name] = {g: {**everything.get(g, {}), **own.get(g, {})} for g in groups}
    return cells


def flags(node: dict[str, Any], prefix: str = "") -> list[str]:
    """A nested mapping as dotted command-line flags."""
    result = []
    for key, value in node.items():
        if isinstance(value, dict):
            result += flags(value, f"{prefix}{key}.")
        else:
            result.append(f"--{prefix}{key}={json.dumps(value)}".replace('"', ""))
    return result


def train(folder: pathlib.Path, overrides: dict[str, Any], arguments: Sequence[str]) -> None:
    """One run of `pld-ray train`, resumed or skipped if it is there already."""
    if (folder / "summary.json").exists():
        return
    command = [sys.executable, "-m", "pld_ray.cli", "train"]
    if (folder / "config.yaml").exists():
        command += [f"--resume={folder}"]
    else:
        command += [*flags(overrides), *arguments]
        command += [f"--output_dir={folder}"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, check=True, env=environment,
            cwd=REPOSITORY,
        )  # fmt: skip
    print(f"{folder.name} done", flush=True)


def curve(folder: pathlib.Path) -> list[tuple[int, float]]:
    """Environment steps and validation success of one run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        (row["env_steps"], row["eval/residual_success"])
        for row in rows
        if "eval/residual_success" in row
    ]


def out_of_bound(folder: pathlib.Path) -> float:
    """Mean share of Q outside the reward's bounds over the online phase."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [r["learner/q_out_of_bound"] for r in rows if "learner/q_out_of_bound" in r]
    return float(np.mean(values)) if values else float("nan")


def interval(values: Sequence[float], episodes: int) -> list[float]:
    """95 % bootstrap interval of the mean success, over seeds and over episodes within a seed."""
    rng = np.random.default_rng(0)
    rates = np.asarray(values)[rng.integers(len(values), size=(4000, len(values)))]
    means = (rng.binomial(episodes, rates) / episodes).mean(1)
    return [round(float(q), 4) for q in np.quantile(means, [0.025, 0.975])]


def cell_result(name: str, folders: Sequence[pathlib.Path]) -> dict[str, Any]:
    """What the runs of one cell reached."""
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    curves = [curve(folder) for folder in folders]
    final = [s["residual_success"] for s in summaries]
    last = [c[-1][1] for c in curves]
    return {
        "preset": name,
        "task": summaries[0]["task"],
        "seeds": [s["seed"] for s in summaries],
        "steps": max(s["env_steps"] for s in summaries),
        "success_mean": round(float(np.mean(final)), 4),
        "success_interval": interval(final, summaries[0]["n_episodes"]),
        "success": final,
        "last_validation_success": last,
        "base_success": summaries[0]["base_success"],
        "validation_base_success": summaries[0]["validation_base_success"],
        "q_out_of_bound": round(float(np.mean([out_of_bound(f) for f in folders])), 5),
        "curves": curves,
    }


def base_result(results: Sequence[dict[str, Any]], episodes: int) -> dict[str, Any] | None:
    """The base policy alone, measured in every run on the same held init states.

    A run's first validation plays it on the validation states, too. None where no run has one.
    """
    with_base = next((r for r in results if r["preset"] != "sac_scratch"), None)
    if with_base is None:
        return None
    rate = with_base["base_success"]
    return {
        "preset": "bc_only",
        "task": with_base["task"],
        "seeds": [],
        "steps": 0,
        "success_mean": rate,
        "success_interval": interval([rate], episodes),
        "validation_success": with_base["validation_base_success"],
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| cell | seeds | steps | success, held | 95 % interval | validation along the run "
        "| q_out_of_bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        low, high = r["success_interval"]
        points = ""
        if "curves" in r:
            steps = [[s for _, s in c] for c in r["curves"]]
            points = ", ".join(f"{np.mean(p):.2f}" for p in zip(*steps, strict=False))
        points = points or f"{r['validation_success']:.2f}"
        bound = f"{r['q_out_of_bound']:.3f}" if "q_out_of_bound" in r else ""
        lines.append(
            f"| {r['preset']} | {len(r['seeds'])} | {r['steps']:,} | {r['success_mean']:.2f} "
            f"| {low:.2f} to {high:.2f} | {points} | {bound} |"
        )
    return "\n".join(lines)


def plot(results: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
    """Mean validation success of each cell over environment steps, range over seeds shaded."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5))
    trained = [r for r in results if "curves" in r]
    for number, r in enumerate(trained):
        length = min(len(c) for c in r["curves"])
        steps = np.mean([[x for x, _ in c[:length]] for c in r["curves"]], axis=0)
        values = np.array([[y for _, y in c[:length]] for c in r["curves"]])
        colour = f"C{number % 10}"
        axes.plot(steps, values.mean(0), "o-", color=colour, label=r["preset"], markersize=4)
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.1)
    for r in results:
        if "curves" not in r:
            base = r["validation_success"]
            axes.axhline(base, color="black", ls="--", lw=1, label=r["preset"])
    axes.set(
        xlabel="environment steps",
        ylabel="success on 50 validation states",
        ylim=(-0.02, 1.02),
        title="Embedded task: mean over seeds, range shaded",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--total_steps", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one core each")
    parser.add_argument("--cells", nargs="*", help="some of the cells; all by default")
    parser.add_argument("--output_dir", type=pathlib.Path, default=pathlib.Path("outputs/ablation"))
    parser.add_argument("--results_dir", type=pathlib.Path, help="default: --output_dir")
    parser.add_argument("--report_only", action="store_true", help="report the finished runs")
    args = parser.parse_args()
    cells = load_cells()
    unknown = sorted(set(args.cells or ()) - set(cells))
    if unknown:
        parser.error(f"unknown cells {unknown}; known are {sorted(cells)}")
    names = args.cells or list(cells)
    folder = args.output_dir.resolve()
    arguments = [
        f"--total_steps={args.total_steps}",
        "--runners.num_env_runners=0",  # a run keeps to one core
        "--evaluation.held_states=50",
        f"--evaluation.interval_steps={EVALUATION_INTERVAL}",
        "--checkpoint.interval_steps=0",
        "--tracking.enabled=false",
    ]
    if not args.report_only:
        runs = [(name, seed) for seed in range(args.seeds) for name in names]
        with ThreadPoolExecutor(args.jobs) as pool:
            futures = [
                pool.submit(
                    train, folder / f"{name}-seed{seed}", cells[name],
                    [*arguments, f"--seed={seed}"],
                )
                for name, seed in runs
            ]  # fmt: skip
            for future in futures:
                future.result()
    results = []
    for name in names:
        finished = [
            folder / f"{name}-seed{seed}"
            for seed in range(args.seeds)
            if (folder / f"{name}-seed{seed}" / "summary.json").exists()
        ]
        if finished:
            results.append(cell_result(name, finished))
    if not results:
        parser.error(f"no run of {names} has finished in {folder}")
    base = base_result(results, 50)
    results += [base] if base else []
    results_dir = args.results_dir or folder
    results_dir.mkdir(parents=True, exist_ok=True)
    (results_dir / "ablation.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, results_dir / "ablation.png")
    print(table(results))


if __name__ == "__main__":
    main()
