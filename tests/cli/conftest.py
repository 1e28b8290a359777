import json

import pytest

from pld_ray.config import TrainConfig
from pld_ray.config.file import dump_config
from pld_ray.runs.status import FAILED, FINISHED, INTERRUPTED, write_status

TASK = "pick_up_the_can_and_place_it_in_the_bin"


@pytest.fixture
def make_run():
    """Writes the folder of a run as `pld-ray train` leaves it."""

    def make(
        folder,
        *,
        seed=0,
        evaluations=(),
        held=None,
        failed="",
        interrupted=False,
        point="",
        **changes,
    ):
        folder.mkdir(parents=True)
        config = TrainConfig(seed=seed, output_dir=str(folder))
        config.algorithm.utd = changes.pop("utd", config.algorithm.utd)
        for name, value in changes.items():
            setattr(config, name, value)
        (folder / "config.yaml").write_text(dump_config(config))
        if point:
            (folder / "trial.json").write_text(json.dumps({"point": point}))
        rows = [{"env_steps": 0, "eval/base_success": 0.56, "eval/n_episodes": 100}]
        for step, success in evaluations:
            rows.append({"env_steps": step, "updates": step, "learner/q_mean": 0.5})
            rows.append({"env_steps": step, "eval/residual_success": success})
        if evaluations:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / "metrics.jsonl").write_text(lines)
            for name in ("best", "interrupted") if interrupted else ("best",):
                checkpoint = folder / "checkpoints" / name
                checkpoint.mkdir(parents=True)
                progress = {"env_steps": evaluations[-1][0]}
                (checkpoint / "residual_sac.json").write_text(json.dumps(progress))
        if held is not None:
            summary = {
                "base_success": 0.56,
                "residual_success": held,
                "env_steps": evaluations[-1][0],
                "seed": seed,
                "task": TASK,
            }
            (folder / "summary.json").write_text(json.dumps(summary))
        if held is not None:
            write_status(folder, FINISHED)
        elif failed:
            write_status(folder, FAILED, failed)
        elif evaluations:
            write_status(folder, INTERRUPTED)
        return folder

    return make
