"""Which exploration lets a residual learn: the experiment behind the first defaults.

    python -m experiments.studies.exploration --output_dir=outputs/exploration

Every variant is the default task with `FIRST_DEFAULTS` and one thing changed, same seed, same
collected base data, same evaluation on the validation states. Writes `exploration.csv` (success
over environment steps) and `exploration.png` into `--results_dir`, beside the runs by default; the
recorded ones are in experiments/results. Finished variants are not run again.
"""

from __future__ import annotations

import argparse
import csv
import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pld_ray.cli import main as pld_ray
from pld_ray.runs.journal import read_history

FIRST_DEFAULTS = [
    *("--algorithm.n_step=3", "--algorithm.gamma=0.98", "--algorithm.utd=1"),
    *("--algorithm.critic_actor_update_ratio=2", "--algorithm.actor_delay_updates=1500"),
    *("--algorithm.num_critics=2", "--algorithm.ema_decay=0", "--algorithm.success_imitation=0"),
    *("--algorithm.log_std_init=-1", "--algorithm.exploration_rho=0.9"),
    *("--algorithm.collection_steps=0", "--algorithm.actor_delay_n_step=0"),
    *("--algorithm.offline_episodes=20", "--algorithm.actor_lr_warmup_updates=0"),
    "--algorithm.conservative_weight=0",
]
VARIANTS: dict[str, list[str]] = {
    "default: AR(1) 0.9, xyz": [],
    "white noise": ["--algorithm.exploration_noise=white"],
    "held 8 steps": ["--algorithm.exploration_noise=held"],
    "all 7 dimensions": ["--algorithm.residual_dims=[]"],
    "residual_scale 0.5": ["--algorithm.residual_scale=0.5"],
    "entropy in the target": ["--algorithm.backup_entropy=true"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", type=pathlib.Path, default="outputs/exploration")
    parser.add_argument("--results_dir", type=pathlib.Path, help="default: --output_dir")
    parser.add_argument("--total_steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    args = parser.parse_args()
    for name in args.only:
        folder = args.output_dir / slug(name)
        if (folder / "summary.json").exists():
            continue
        status = pld_ray(
            [
                "train",
                f"--output_dir={folder}",
                f"--total_steps={args.total_steps}",
                f"--seed={args.seed}",
                "--runners.num_env_runners=1",
                "--evaluation.interval_steps=5000",
                "--evaluation.held_states=10",
                "--checkpoint.interval_steps=0",
                "--tracking.enabled=false",
                *FIRST_DEFAULTS,
                *VARIANTS[name],
            ]
        )
        if status:
            raise SystemExit(status)
    curves = {
        name: curve(args.output_dir / slug(name) / "metrics.jsonl")
        for name in VARIANTS
        if (args.output_dir / slug(name) / "summary.json").exists()
    }
    if not curves:
        parser.error(f"no variant has finished in {args.output_dir}")
    results_dir = args.results_dir or args.output_dir
    results_dir.mkdir(parents=True, exist_ok=True)
    write_csv(curves, results_dir / "exploration.csv")
    plot(curves, results_dir / "exploration.png")


def slug(name: str) -> str:
    """A folder name for a variant."""
    return "".join(c if c.isalnum() else "_" for c in name.lower())


def curve(path: pathlib.Path) -> list[tuple[int, float]]:
    """(environment steps, validation success) of each evaluation."""
    rows = read_history(path)
    key = "eval/residual_success"
    return [(row["env_steps"], row[key]) for row in rows if row.get(key) is not None]


def write_csv(curves: dict[str, list[tuple[int, float]]], path: pathlib.Path) -> None:
    """One row per evaluation."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["variant", "env_steps", "validation_success"])
        for name, points in curves.items():
            writer.writerows([name, steps, f"{success:.2f}"] for steps, success in points)


def plot(curves: dict[str, list[tuple[int, float]]], path: pathlib.Path) -> None:
    """All variants in one picture."""
    figure = Figure(figsize=(9, 5), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    axes.set(
        xlabel="environment steps",
        ylabel="success on the validation states",
        ylim=(-0.02, 1.02),
        title="One change at a time from the first default",
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))


if __name__ == "__main__":
    main()
