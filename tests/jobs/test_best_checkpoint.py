"""A run that is killed at any moment keeps its best policy, and misses no validation."""

from __future__ import annotations

import json
import logging
import pathlib
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from pld_ray.config import TrainConfig
from pld_ray.evaluation.play import EpisodeResult
from pld_ray.files.manifest import check_manifest, write_manifest
from pld_ray.jobs import loop_state as states
from pld_ray.jobs.loop_state import LoopState, agree_with_best, finish_best, loop_state
from pld_ray.jobs.validation import Validation
from pld_ray.runs import run_dir as run_dirs
from pld_ray.runs.layout import CANDIDATE
from pld_ray.runs.run_dir import RunDir

INTERVAL, TOTAL = 100, 350


class Algorithm:
    """Plays as well as it is told; its evaluations end when they are waited for."""

    updates, acts_as_base, has_frozen_base, residual_scale = 1, False, True, 1.0

    def __init__(self) -> None:
        self.env_steps = 0
        self.success = 0.0

    def start_evaluation(self, states, contestants):
        n = round(self.success * len(states))
        episodes = [EpisodeResult(i < n, 0.0, 0.0, 1, init_state_id=i) for i in states]
        results = dict.fromkeys(contestants, episodes)
        return SimpleNamespace(wait=lambda: results, poll=lambda: None)


class Life:
    """One process of a run, from the newest checkpoint on."""

    def __init__(self, run: RunDir, others: int = 0) -> None:
        self.run, self.algorithm = run, Algorithm()
        config = TrainConfig(total_steps=TOTAL)
        config.evaluation.interval_steps, config.evaluation.num_env_runners = INTERVAL, others
        config.evaluation.held_states, config.evaluation.validation_states = 0, 10
        self.recorded: list[tuple[int, float]] = []
        self.state = LoopState.begin(config)
        finish_best(run)
        newest = run.latest_checkpoint()
        if newest is not None:
            assert check_manifest(newest)
            self.state = loop_state(newest, LoopState)
            self.algorithm.env_steps = self._steps_of(newest)
            agree_with_best(run, self.state, newest)
            run.go_on_from(newest)
        self.validation = Validation(
            config, run, self.algorithm, self.save, self.record, logging.getLogger(__name__)
        )

    def at(self, env_steps: int, success: float) -> None:
        self.algorithm.env_steps, self.algorithm.success = env_steps, success
        self.validation.step(self.state, lambda: None)

    def record(self, figures: dict[str, float], env_steps: int) -> None:
        self.recorded.append((env_steps, figures["eval/residual_success"]))

    def save(self, name: str) -> pathlib.Path:
        def write(folder: str) -> None:
            progress = {"env_steps": self.algorithm.env_steps}
            (pathlib.Path(folder) / "residual_sac.json").write_text(json.dumps(progress))
            write_manifest(pathlib.Path(folder))

        state = asdict(self.state) | self.validation.unfinished
        return self.run.save_checkpoint(write, name, state)

    @property
    def best_steps(self) -> int:
        return self._steps_of(self.run.checkpoints / "best")

    def _steps_of(self, folder: pathlib.Path) -> int:
        return json.loads((folder / "residual_sac.json").read_text())["env_steps"]


@pytest.fixture
def run(tmp_path) -> RunDir:
    run = RunDir(tmp_path)
    run.create(TrainConfig())
    return run


def test_a_worse_policy_does_not_replace_the_best_after_a_kill(run):
    Life(run).at(100, success=0.8)
    resumed = Life(run)
    assert (resumed.algorithm.env_steps, resumed.state.best_success) == (100, 0.8)
    resumed.at(200, success=0.3)
    assert resumed.best_steps == 100
    assert Life(run).state.best_success == 0.8  # from the candidate of 200 steps


def test_what_was_validated_is_not_validated_again_after_a_kill(run):
    Life(run).at(100, success=0.8)
    resumed = Life(run)
    resumed.at(150, success=0.9)
    assert resumed.recorded == []
    assert resumed.state.validation_base == 0.8


def test_a_checkpoint_that_is_older_than_the_verdict_learns_it(run):
    life = Life(run, others=1)
    life.at(100, success=0.8)  # goes on in the background
    life.algorithm.env_steps = 150
    life.save("step_000000150")
    life.validation._conclude(life.validation._running.wait(), life.state)
    resumed = Life(run)
    assert resumed.algorithm.env_steps == 150
    resumed.at(200, success=0.3)
    assert resumed.best_steps == 100


def test_a_validation_that_a_kill_ended_is_played_again(run):
    Life(run, others=1).at(100, success=0.8)
    resumed = Life(run)
    resumed.at(110, success=0.6)
    assert resumed.recorded == [(110, 0.6)]


def test_the_last_validation_is_played_when_a_kill_came_before_it(run):
    life = Life(run)
    life.at(100, success=0.8)
    life.algorithm.env_steps = TOTAL
    life.save("step_000000350")
    resumed = Life(run)
    resumed.at(TOTAL, success=0.9)
    resumed.at(TOTAL, success=0.9)  # asked once more, it is over
    assert resumed.recorded == [(TOTAL, 0.9)]
    assert resumed.best_steps == TOTAL


def test_going_back_before_the_best_the_next_policy_is_the_best_there_is(run):
    life = Life(run)
    life.algorithm.env_steps = 90
    old = life.save("step_000000090")
    life.at(100, success=0.8)
    life.state = loop_state(old, LoopState)
    life.state.best_success = 0.7  # of a `best` that was replaced
    agree_with_best(run, life.state, old)
    run.go_on_from(old)
    life.at(100, success=0.5)
    assert (life.best_steps, life.state.best_success) == (100, 0.5)
    assert not (run.checkpoints / CANDIDATE).exists()


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (states, "write_json_atomically"),
        (states, "add_to_manifest"),
        (RunDir, "rename_checkpoint"),
        (run_dirs.os, "replace"),  # of the candidate: the old `best` is retired by then
    ],
)
def test_killed_within_a_verdict_the_best_policy_is_kept(run, monkeypatch, place, name):
    life = Life(run)
    life.at(100, success=0.5)
    real = getattr(place, name)

    def dies(*args):
        if name == "replace" and args[0] != run.checkpoints / CANDIDATE:
            return real(*args)
        raise Killed

    monkeypatch.setattr(place, name, dies)
    with pytest.raises(Killed):
        life.at(200, success=0.9)
    monkeypatch.undo()
    run.sweep_leftovers()
    resumed = Life(run)
    assert resumed.algorithm.env_steps == 200
    if resumed.state.evaluated_at < 200:  # nothing was written: it is played again
        resumed.at(210, success=0.9)
    assert resumed.state.best_success == 0.9
    assert resumed.best_steps >= 200
    resumed.at(300, success=0.8)
    assert 200 <= resumed.best_steps < 300
    assert check_manifest(run.checkpoints / "best")


def test_a_release_that_wrote_no_verdict_does_not_lower_what_the_best_is_worth(run):
    life = Life(run)
    life.at(100, success=0.8)
    trainer = run.checkpoints / "best" / "trainer.json"
    told = json.loads(trainer.read_text()) | {"best_success": 0.8, "evaluated_at": -1}
    trainer.write_text(json.dumps(told))
    state = LoopState(best_success=0.8)
    agree_with_best(run, state, run.checkpoints / "best")
    told["best_success"] = 0.9  # of the one before
    trainer.write_text(json.dumps(told))
    agree_with_best(run, state, run.checkpoints / "best")
    assert state.best_success == 0.8


def test_beside_a_checkpoint_of_another_run_the_own_best_stays(run, tmp_path):
    life = Life(run)
    life.at(150, success=0.7)
    donor = RunDir(tmp_path / "donor")
    donor.create(TrainConfig())
    other = Life(donor)
    other.at(100, success=0.8)
    copied = donor.checkpoints / "best"
    life.state = loop_state(copied, LoopState)
    agree_with_best(run, life.state, copied, keeps_best=True)
    assert life.state.best_success == 0.7
    life.algorithm.env_steps = 120  # the copy, saved as its own, and resumed
    own = life.save("step_000000120")
    life.state = loop_state(own, LoopState)
    agree_with_best(run, life.state, own, keeps_best=True)
    assert life.state.best_success == 0.7
    life.at(200, success=0.1)
    assert life.best_steps == 150
    life.at(300, success=0.75)
    assert life.best_steps == 300


def test_the_best_is_the_best_of_all_so_far(run):
    life = Life(run)
    for steps, success in ((100, 0.8), (200, 0.3), (300, 0.5)):
        life.at(steps, success)
    assert (life.best_steps, life.state.best_success) == (100, 0.8)


def test_of_equals_the_newer_is_the_best(run):
    life = Life(run)
    life.at(100, 0.8)
    life.at(200, 0.8)
    assert life.best_steps == 200


def test_a_figure_is_of_the_weights_that_were_played(run):
    life = Life(run, others=1)
    life.at(100, success=0.8)
    life.algorithm.env_steps = 150
    life.validation._conclude(life.validation._running.wait(), life.state)
    assert life.recorded == [(100, 0.8)]
    assert life.state.evaluated_at == 100


def test_the_last_weights_are_judged_though_another_evaluation_goes_on(run):
    life = Life(run, others=1)
    life.at(100, success=0.8)
    life.at(TOTAL, success=0.9)
    assert life.recorded == [(100, 0.8), (TOTAL, 0.9)]
    assert life.best_steps == TOTAL


def test_the_base_policy_plays_once(run):
    life = Life(run)
    asked, start = [], life.algorithm.start_evaluation

    def watched(states, contestants):
        asked.append(sorted(contestants))
        return start(states, contestants)

    life.algorithm.start_evaluation = watched
    life.at(100, 0.8)
    life.at(200, 0.8)
    assert asked == [["base", "residual"], ["residual"]]


def test_validation_states_follow_the_held_ones(run):
    life = Life(run)
    from pld_ray.config import TrainConfig
    from pld_ray.jobs.validation import Validation

    config = TrainConfig()
    config.evaluation.held_states, config.evaluation.validation_states = 7, 3
    v = Validation(config, run, life.algorithm, life.save, life.record, None)
    assert v.states == [7, 8, 9]
