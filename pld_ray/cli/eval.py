"""`pld-ray eval`."""

from __future__ import annotations

import re

from pld_ray.cli.arguments import pop_flag, pop_value

USAGE = """usage: pld-ray eval --checkpoint=DIR [options]

  --checkpoint=DIR      a folder below RUN_DIR/checkpoints
  --n_episodes=N        of the run's held init states; all of them by default, and never those that
                        chose the checkpoint
  --output_dir=DIR      where eval_info.json goes; the checkpoint's folder by default
  --videos=0,7,12       films of these init states, base and residual side by side
  --trust               run the code that a foreign run names
  --parity              check that beta = 0 repeats the base policy's episodes
"""


def run(args: list[str]) -> int:
    """Evaluate; exit status 1 when parity was asked for and does not hold."""
    from pld_ray.config import ConfigError

    checkpoint = pop_value(args, "checkpoint")
    n_episodes = pop_value(args, "n_episodes")
    output_dir = pop_value(args, "output_dir")
    videos = pop_value(args, "videos") or ""
    parity, trust = pop_flag(args, "parity"), pop_flag(args, "trust")
    if args or checkpoint is None:
        raise ConfigError(
            "pld-ray eval takes --checkpoint=DIR [--n_episodes=N] [--output_dir=DIR] "
            "[--videos=ID,ID,...] [--parity] [--trust]"
            + (f"; {' '.join(args)} is none of these" if args else "")
        )
    if n_episodes is not None and (
        not re.fullmatch(r"[0-9]{1,9}", n_episodes) or int(n_episodes) < 1
    ):
        raise ConfigError(f"--n_episodes={n_episodes}: must be a whole number >= 1")
    if not all(re.fullmatch(r"[0-9]{1,9}", part.strip()) for part in videos.split(",") if videos):
        raise ConfigError(f"--videos={videos}: must be init states, such as --videos=0,7,12")
    films = [int(part) for part in videos.split(",") if part.strip()]

    from pld_ray.jobs.evaluate import evaluate_checkpoint

    episodes = None if n_episodes is None else int(n_episodes)
    info = evaluate_checkpoint(checkpoint, episodes, output_dir, films, parity, trust)
    print(
        f"base {info['base_success']:.0%}, base + residual {info['residual_success']:.0%} on "
        f"{info['n_episodes']} held init states"
    )
    if parity:
        print(f"beta 0 repeats the base policy's episodes: {'yes' if info['parity'] else 'NO'}")
    for path in (*info["videos"], info["path"]):
        print(f"written: {path}")
    return 0 if info["parity"] in (None, True) else 1
