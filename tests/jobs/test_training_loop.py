"""What the training loop does when, and what it remembers."""

from __future__ import annotations

import json
import logging
import pathlib
import signal
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from pld_ray.config import TrainConfig
from pld_ray.evaluation.play import EpisodeResult
from pld_ray.files.manifest import CheckpointError, write_manifest
from pld_ray.jobs.loop_state import LoopState, load_first, loop_state, worth
from pld_ray.jobs.stop_request import Stopped
from pld_ray.jobs.training_loop import TrainingLoop
from pld_ray.runs.journal import GIVEN_UP, RESTART
from pld_ray.runs.reading import wall_before
from pld_ray.runs.run_dir import RunDir


def due_at(state: LoopState, steps: list[int], interval: int, total: int) -> list[int]:
    return [step for step in steps if state.evaluation_due(step, interval, total)]


def test_an_evaluation_is_due_once_an_interval_and_at_the_end():
    config = TrainConfig()
    config.evaluation.interval_steps = 100
    state = LoopState.begin(config)
    assert due_at(state, [40, 90, 110, 150, 420, 450, 505], 100, 500) == [110, 420, 505]
    assert state.next_evaluation == 600
    assert due_at(LoopState(), [0, 100, 499, 500], 0, 500) == [500]


def test_a_checkpoint_is_due_once_an_interval_and_never_with_none():
    config = TrainConfig()
    config.checkpoint.interval_steps = 100
    state = LoopState.begin(config)
    assert [step for step in (99, 100, 130, 350, 399, 401) if state.checkpoint_due(step, 100)] == [
        100,
        350,
        401,
    ]
    assert not state.checkpoint_due(1000, 0)


def test_a_state_of_another_release_is_refused_with_its_file(tmp_path):
    assert loop_state(tmp_path, LoopState) == LoopState()
    (tmp_path / "trainer.json").write_text('{"best_success": 0.5, "next_evaluation": 7}')
    assert loop_state(tmp_path, LoopState) == LoopState(best_success=0.5, next_evaluation=7)
    (tmp_path / "trainer.json").write_text('{"mood": "good"}')
    with pytest.raises(CheckpointError, match=r"trainer\.json is damaged: it holds another state"):
        loop_state(tmp_path, LoopState)


def test_a_display_is_told_of_which_states_the_base_policy_is():
    row = {"init_state_id": 0, "success": True, "length": 1, "sum_reward": 1.0}
    state = LoopState(base_rows=[row])
    assert state.shown_base == {"base_success": 1.0, "base_states": "held"}
    state.validation_base = 0.25
    assert state.shown_base == {"base_success": 0.25, "base_states": "validation"}


def test_the_newest_whole_checkpoint_is_taken_or_the_first_damage_told(caplog):
    log = logging.getLogger(__name__)
    paths = [pathlib.Path(name) for name in ("newest", "older", "oldest")]
    taken = []

    def load(path):
        if path.name in broken:
            raise CheckpointError(f"{path} is damaged")
        taken.append(path.name)

    broken = {"newest"}
    assert load_first(paths, load, log) == paths[1]
    assert taken == ["older"]
    assert "newest is damaged" in caplog.text
    assert "going on from the next older checkpoint, older" in caplog.text
    broken = {path.name for path in paths}
    with pytest.raises(CheckpointError, match="newest is damaged"):
        load_first(paths, load, log)
    assert load_first([], load, log) is None


def test_policies_are_ordered_by_their_success_and_then_by_their_loss():
    known = [
        *({}, {"best_loss": 0.5}, {"best_success": 0.0}, {"best_success": 0.5, "best_loss": 9.0}),
        *({"best_success": 0.5, "best_loss": 0.1}, {"best_success": 0.9, "best_loss": 5.0}),
    ]
    worths = [worth(state) for state in known]
    assert worths == sorted(set(worths))


def test_the_base_policy_s_success_is_of_the_validation_states_where_it_played_them():
    rows = [asdict(EpisodeResult(k < 3, 0.0, 0.0, 1, init_state_id=k)) for k in range(4)]
    assert LoopState().base_success is None
    assert LoopState(base_rows=rows).base_success == 0.75
    assert LoopState(base_rows=rows, validation_base=0.0).base_success == 0.0


@pytest.mark.parametrize(("device", "ends"), [("keyboard", 1), ("none", 0), ("scripted", 0)])
def test_a_stop_ends_the_wait_for_whoever_holds_a_device(monkeypatch, device, ends):
    """In a pause of theirs too, which may last for ever; without a robot."""
    monkeypatch.setattr(TrainingLoop, "prepare", lambda *_: None)
    config, checks = TrainConfig(), []
    config.intervention.device = device
    algorithm = SimpleNamespace(
        env_steps=0, updates=1, runners=SimpleNamespace(end_with=checks.append)
    )
    loop = TrainingLoop.__new__(TrainingLoop)
    loop.config, loop.algorithm, loop.state = config, algorithm, LoopState.begin(config)

    def iterate(_):
        assert len(checks) == ends
        signal.raise_signal(signal.SIGINT)
        for check in checks:
            with pytest.raises(Stopped):
                check()

    loop.iterate = iterate
    assert not loop.run(SimpleNamespace(over=lambda: None))


@pytest.mark.parametrize(
    ("checkpoint", "total_steps", "is_over", "gives_up"),
    [
        (None, 1500, True, {}),
        ("final", 1500, True, {}),
        (None, 6000, False, {}),
        ("step_1000", 1500, False, {GIVEN_UP: 1000}),
        ("step_1000", 1000, False, {GIVEN_UP: 1000}),
    ],
)
def test_results_of_an_end_go_when_the_run_goes_on_or_back(
    tmp_path, checkpoint, total_steps, is_over, gives_up
):
    """One that is over is evaluated again, and keeps what it has until then."""
    run, algorithm = RunDir(tmp_path), SimpleNamespace(updates=1)
    algorithm.progress = SimpleNamespace(calql_done=0)

    def write(folder):
        progress = {"env_steps": algorithm.env_steps}
        (pathlib.Path(folder) / "residual_sac.json").write_text(json.dumps(progress))
        write_manifest(pathlib.Path(folder))

    def load(folder):
        progress = json.loads((pathlib.Path(folder) / "residual_sac.json").read_text())
        algorithm.env_steps = progress["env_steps"]

    algorithm.load_checkpoint = load
    for algorithm.env_steps, name in ((1000, "step_1000"), (1500, "final")):
        run.journal.append({"env_steps": algorithm.env_steps})
        run.save_checkpoint(write, name, {})
    results = {"summary.json", "eval_info.json", "learning_curve.png"}
    for name in results:
        (tmp_path / name).write_text('{"total_wall_s": 5000}')
    loop = TrainingLoop.__new__(TrainingLoop)
    loop.config, loop.run_dir, loop.algorithm = TrainConfig(total_steps=total_steps), run, algorithm
    loop.journal, loop.logger, loop.keeps_best = run.journal, logging.getLogger(__name__), False
    loop.dump = loop.tracker = None
    loop.restore(None if checkpoint is None else run.checkpoint_named(checkpoint))
    assert {p.name for p in tmp_path.iterdir()} & results == (results if is_over else set())
    assert wall_before(tmp_path) == 5000
    restart = run.journal.everything()[-1]
    assert {GIVEN_UP: restart.get(GIVEN_UP)} == {GIVEN_UP: None} | gives_up
    assert restart[RESTART]
