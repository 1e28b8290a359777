"""What a start would refuse of demonstrations and statistics is refused before anything starts."""

from __future__ import annotations

import dataclasses
import json

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID

from envs.point import PointEnv
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.data.dataset import Dataset
from pld_ray.data.demonstrations import check_alike
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.data.errors import DataError
from pld_ray.data.norm_stats import NormStats, write_norm_stats
from pld_ray.jobs.build import check_environment
from pld_ray.jobs.offline_stage import look_at_environment
from pld_ray.rllib.chunked.learner import ACRLPDLearner
from pld_ray.rllib.chunked.offline import OfflineData
from pld_ray.rllib.of_run import algorithm_config

LENGTH = 4


def dataset(root, success=True, fps=20, episodes=({},), **changes):
    """Episodes of `PointEnv`; `changes` are columns of all, `episodes` of each."""
    rng, rows = np.random.default_rng(0), LENGTH + 1
    columns = {
        "observation.state": rng.normal(size=(rows, 8)),
        "observation.environment_state": rng.normal(size=(rows, 24)),
        "base_action": np.zeros((rows, 7)),
        "action": rng.uniform(-1, 1, (rows, 7)),
        "reward": np.eye(rows)[LENGTH - 1] * success,
        "residual_scale": np.zeros(rows),
    }
    columns = {name: np.float32(values) for name, values in columns.items()}
    over = np.arange(rows) == LENGTH - 1
    columns |= {"terminated": over & success, "truncated": over & (not success)}
    columns |= {"success": over & success, "intervened": over & False}
    writer = EpisodeWriter(root, Recording(task="reach", fps=fps))
    for own in episodes:
        writer.add(columns | changes | own)
    writer.finish()
    return str(root)


@pytest.fixture
def config(tmp_path) -> TrainConfig:
    config = TrainConfig(output_dir=str(tmp_path / "run"))
    config.env.entry_point = "envs.point:PointEnv"
    config.policy.type = "none"
    config.algorithm.gripper = "continuous"
    config.algorithm.gamma = 0.98
    return config


def chunked(config: TrainConfig) -> ACRLPDTrainConfig:
    """A run of Q-chunking in the same environment."""
    found = ACRLPDTrainConfig(output_dir=config.output_dir, env=config.env)
    found.algorithm.horizon, found.algorithm.hidden_dims = 2, [16]
    return found


def refusal(config: TrainConfig) -> str:
    config.validate()
    with pytest.raises(ConfigError) as refused:
        check_environment(config)
    return str(refused.value)


def test_demonstrations(config, tmp_path):
    config.demo_path = [dataset(tmp_path / "good")]
    check_environment(config)
    config.demo_path = [dataset(tmp_path / "failed", success=False)]
    assert "failed has no episode that ended in success: record some, or" in refusal(config)
    config.demo_episodes = "all"
    check_environment(config)
    outside = np.full((LENGTH + 1, 7), 3, np.float32)
    config.demo_path = [dataset(tmp_path / "radians", action=outside)]
    assert "episode 0: action dimension 0 ranges from 3 to 3, " in refusal(config)
    state = np.zeros((LENGTH + 1, 8), np.float32)
    state[2, 1] = np.nan
    config.demo_path = [dataset(tmp_path / "torn", **{"observation.state": state})]
    assert "torn, episode 0: observation.state is not finite in frame 2" in refusal(config)
    every_frame = np.ones(LENGTH + 1, np.float32)
    config.demo_path = [dataset(tmp_path / "dense", reward=every_frame)]
    assert "dense, episode 0: discounted returns between 1 and 3.882 lie" in refusal(config)
    config.algorithm.reward_scale = 0.25
    check_environment(config)
    config.algorithm.offline_capacity = LENGTH
    assert "has 4 transitions and the offline replay of a learner holds 4 rows" in refusal(config)
    config.algorithm.offline_capacity = 100
    config.env.entry_point = f"{__name__}:UntimedEnv"
    config.demo_path = [dataset(tmp_path / "20"), dataset(tmp_path / "50", fps=50)]
    assert "20 has 20 frames per second and " in refusal(config)
    config.env.entry_point = "envs.point:PointEnv"
    config.demo_path = [dataset(tmp_path / "slow", fps=50)]
    assert "slow has 50 frames per second" in refusal(config)


@pytest.mark.parametrize("kind", [TrainConfig, ACRLPDTrainConfig])
def test_demonstrations_are_not_more_than_the_offline_ring_holds(config, kind, tmp_path):
    if kind is ACRLPDTrainConfig:
        config = chunked(config)
    config.demo_episodes = "all"
    good, bad = dataset(tmp_path / "good"), dataset(tmp_path / "bad", success=False)
    config.demo_path = [good, bad]
    config.algorithm.offline_capacity = 2 * (LENGTH + 1)
    check_environment(config)
    config.algorithm.offline_capacity -= 1
    said = refusal(config)
    assert "the 2 episodes of demo_path need 10 rows of the offline replay" in said
    assert "algorithm.offline_capacity=9 would drop the first ones: raise it to 10" in said
    config.demo_path = [bad, good]  # what could be cloned would be left
    assert refusal(config) == said


def test_the_busiest_learner_decides(config, tmp_path):
    config.demo_episodes = "all"
    config.demo_path = [dataset(tmp_path / str(k), success=k > 0) for k in range(3)]
    config.runners.num_learners = 2
    config.algorithm.offline_capacity = 20
    check_environment(config)
    config.algorithm.offline_capacity = 18
    assert "demo_path, dealt to 2 learners, need 20 rows" in refusal(config)


def test_who_reads_them_refuses_them_too(config, tmp_path):
    config = chunked(config)
    config.demo_path = [dataset(tmp_path / "good"), dataset(tmp_path / "bad", success=False)]
    config.algorithm.offline_capacity = 9
    with pytest.raises(DataError, match="raise it to 10"):
        chunked_learner(config)[1].step()


@pytest.mark.parametrize("kind", [TrainConfig, ACRLPDTrainConfig])
def test_a_dataset_of_which_no_row_may_start_a_window(config, kind, tmp_path):
    if kind is ACRLPDTrainConfig:
        config = chunked(config)
    none, last = np.zeros(LENGTH + 1, bool), np.arange(LENGTH + 1) == LENGTH
    good = dataset(tmp_path / "good")
    for name, marks in (("none", none), ("last", last)):  # the final frame is no start
        config.demo_path = [good, dataset(tmp_path / name, start=marks)]
        assert f"{name}: start marks no frame of the episodes that are learnt" in refusal(config)
    config.demo_path = [good, dataset(tmp_path / "one", start=np.arange(LENGTH + 1) == 2)]
    check_environment(config)


def test_marked_rows_from_which_chunks_cannot_be_learnt(config, tmp_path):
    config = chunked(config)
    config.algorithm.horizon, config.algorithm.tail = 3, "drop"
    config.demo_episodes = "all"
    early, late = (np.arange(LENGTH + 1) == row for row in (1, 2))
    config.demo_path = [dataset(tmp_path / "late", start=late)]
    assert "no row that start marks in demo_path has the 3 steps" in refusal(config)
    config.demo_path.append(dataset(tmp_path / "early", success=False, start=early))
    assert "start marks no row of the episodes of demo_path that ended in success" in refusal(
        config
    )
    config.algorithm.bc_episodes = "all"
    check_environment(config)
    config.algorithm.bc_episodes, config.algorithm.tail = "positive", "pad"
    check_environment(config)


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_each_learner_needs_a_window_of_its_own(config, tail, tmp_path):
    config = chunked(config)
    config.algorithm.horizon, config.algorithm.tail = 3, tail
    config.runners.num_learners = 2
    none = np.zeros(LENGTH + 1, bool) if tail == "pad" else np.arange(LENGTH + 1) == 2
    mixed, rows = tmp_path / "mixed", np.arange(LENGTH + 1) == 0
    dataset(mixed, start=none, episodes=[{}, {"start": rows}] * 2)
    config.demo_path = [str(mixed)]
    said = refusal(config)
    assert f"2 episodes of demo_path that learner 1 of 2 is dealt, from {mixed}, episode 0" in said
    assert f"marks {1 if tail == 'pad' else 3} or more steps before its end: use fewer" in said
    assert "(--runners.num_learners, now 2), or mark more" in said
    config.demo_path.append(dataset(tmp_path / "one", start=rows))  # the first learner's third
    check_environment(config)
    config.demo_path = [str(mixed)]
    config.runners.num_learners = 1
    check_environment(config)


def test_each_learner_needs_an_episode(config, tmp_path):
    config = chunked(config)
    config.demo_path = [dataset(tmp_path / str(number)) for number in range(2)]
    config.runners.num_learners = 3
    assert "demo_path has 2 episodes for 3 learners, who are dealt whole ones" in refusal(config)
    config.runners.num_learners = 2
    check_environment(config)


def test_who_deals_episodes_to_learners_refuses_a_share_of_none(config, tmp_path):
    config = chunked(config)
    config.demo_path = [dataset(tmp_path / "one")]
    config.runners.num_learners = 2
    algorithm = algorithm_config(config)
    data = OfflineData(algorithm, Nobody(), look_at_environment(config, algorithm))
    with pytest.raises(DataError, match="1 episodes for 2 learners"):
        data.step()


class Nobody:
    """Learners that keep nothing."""

    def store(self, batches):
        pass

    def fit_normalizer(self, state=None):
        pass


def chunked_learner(config):
    """A learner of Q-chunking, and what fills its offline ring."""
    algorithm = algorithm_config(config)
    environment = look_at_environment(config, algorithm)
    spec = algorithm.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: environment.spaces})
    learner = ACRLPDLearner(config=algorithm, module_spec=spec)
    learner.build()
    return learner, OfflineData(algorithm, learner, environment)


def test_chunks_begin_where_a_dataset_says_so_and_anywhere_in_others(config, tmp_path):
    """Of whatever type it is there; and again after a checkpoint."""
    config = chunked(config)
    rows = np.isin(np.arange(LENGTH + 1), (1, 3, LENGTH))
    config.demo_path = [
        dataset(tmp_path / "plain"),
        dataset(tmp_path / "flags", start=rows),
        dataset(tmp_path / "lists", start=rows),
    ]
    (path,) = tmp_path.glob("lists/data/*/*.parquet")
    table = pq.read_table(path)
    lists = pa.array(rows[:-1, None].astype(int).tolist(), pa.list_(pa.int64(), 1))
    where = table.column_names.index("start")
    pq.write_table(table.set_column(where, "start", pa.chunked_array([lists])), path)
    learner, data = chunked_learner(config)
    data.step()
    learner.save(str(tmp_path))
    other, _ = chunked_learner(config)
    other.load(str(tmp_path))
    for ring in (learner.replay.offline, other.replay.offline):
        assert ring.start_rows().tolist() == [0, 1, 2, 3, 5 + 1, 5 + 3, 10 + 1, 10 + 3]
        assert len(ring.transition_rows()) == 3 * LENGTH
        assert set(ring.sample_windows(200, 2, 0.9)["row"].tolist()) == set(
            ring.start_rows().tolist()
        )


def test_statistics_of_the_state(config, tmp_path):
    config.norm_stats = str(tmp_path)
    assert refusal(config).endswith(f"is missing: make it with pld-ray norm-stats {tmp_path}")
    path = tmp_path / "norm_stats.json"
    for width, said in ((7, "state has 7 dimensions, the environment's has 8"), (8, "")):
        write_norm_stats(path, {"state": NormStats(*np.ones((4, width)))})
        if said:
            assert said in refusal(config)
    check_environment(config)
    swapped = NormStats(np.zeros(8), np.ones(8), q01=np.ones(8), q99=np.zeros(8))
    write_norm_stats(path, {"state": swapped})
    check_environment(config)
    config.norm_stats_mode = "quantile"
    assert "statistics of state are not finite, or q99 is below q01" in refusal(config)
    config.norm_stats_mode = "zscore"
    write_norm_stats(path, {"state": NormStats(*np.ones((4, 8)))})
    config.demo_path = [dataset(tmp_path / "own")]
    check_environment(config)
    write_norm_stats(tmp_path / "own/norm_stats.json", {"state": NormStats(*np.zeros((4, 8)))})
    assert "norm_stats.json has other statistics than norm_stats=" in refusal(config)
    write_norm_stats(tmp_path / "own/norm_stats.json", {"state": NormStats(*np.ones((4, 8)))})
    check_environment(config)
    config.demo_path = []
    path.write_text(json.dumps({"norm_stats": {}}))
    assert "has no statistics of state, only of nothing" in refusal(config)
    config.env.entry_point = f"{__name__}:StatelessEnv"
    assert "is of observation.state, which " in refusal(config)


def test_what_is_learnt_together_is_alike_in_every_dataset(tmp_path):
    def stats(root, state=1.0, actions=1.0, **changes):
        made = {"state": NormStats(*np.full((4, 8), state)), "actions": np.full((4, 7), actions)}
        made["actions"] = NormStats(*made["actions"])
        made["state"] = dataclasses.replace(made["state"], **changes)
        write_norm_stats(root / "norm_stats.json", made)

    def refused(words):
        return pytest.raises(DataError, match=words)

    paths = [dataset(tmp_path / name) for name in "abc"]
    made = [Dataset(path) for path in paths]
    stats(tmp_path)
    check_alike(made, str(tmp_path))
    stats(tmp_path / "c", actions=2.0)  # of another horizon: only the state is standardised
    check_alike(made, str(tmp_path))
    stats(tmp_path / "c", mean=np.zeros(8))
    with refused(r"c/norm_stats\.json has other statistics than norm_stats="):
        check_alike(made, str(tmp_path))
    check_alike(made)
    fast = Dataset(dataset(tmp_path / "fast", fps=50))
    with refused("a has 20 frames per second and .*fast 50"):
        check_alike([*made, fast])


def test_statistics_that_nobody_would_use(config):
    config.norm_stats = "somewhere"
    config.pretrained_critic = "elsewhere"
    with pytest.raises(ConfigError, match="norm_stats and pretrained_critic exclude each other"):
        config.validate()
    config.pretrained_critic = None
    config.algorithm.normalize_observations = False
    with pytest.raises(ConfigError, match=r"no use with algorithm\.normalize_observations=false"):
        config.validate()


def test_a_dump_needs_steps_per_second(config):
    config.dump_interval = 100
    check_environment(config)
    config.env.entry_point = f"{__name__}:UntimedEnv"
    assert "UntimedEnv does not tell its steps per second" in refusal(config)


@pytest.mark.parametrize("kind", [TrainConfig, ACRLPDTrainConfig])
def test_an_environment_of_several_tasks_has_no_embedding(config, kind, tmp_path):
    if kind is ACRLPDTrainConfig:
        config = chunked(config)
    told = np.full(LENGTH + 1, 3, np.float32)
    config.demo_path = [dataset(tmp_path / "third", task_index=told)]
    config.env.entry_point = f"{__name__}:ManyTasksEnv"
    check_environment(config)  # nobody reads it
    config.algorithm.task_embedding = "learned"
    said = refusal(config)
    assert f"task_index is {MANY_TASKS}, and algorithm.task_embedding=learned knows the" in said
    assert "1 of them, numbered from 0: set it to none" in said


MANY_TASKS = gym.spaces.Box(0, 4, (), np.float32)


class ManyTasksEnv(PointEnv):
    """Says at each step which of five tasks is played."""

    def __init__(self):
        super().__init__()
        spaces = {**self.observation_space.spaces, "task_index": MANY_TASKS}
        self.observation_space = gym.spaces.Dict(spaces)

    def _observation(self):
        return {**super()._observation(), "task_index": np.array(3, np.float32)}


class UntimedEnv(PointEnv):
    metadata = {}


class StatelessEnv(PointEnv):
    """Gives what surrounds the robot alone."""

    def __init__(self):
        super().__init__()
        name = "observation.environment_state"
        self.observation_space = gym.spaces.Dict({name: self.observation_space[name]})

    def _observation(self):
        observation = super()._observation()
        del observation["observation.state"]
        return observation


def test_a_checkpoint_plays_without_what_it_was_learnt_from(config, tmp_path):
    gone = str(tmp_path / "gone")
    config.demo_path, config.norm_stats = [gone], gone
    check_environment(config, learns=False)
    with pytest.raises(ConfigError, match="gone"):
        check_environment(config)
    config.norm_stats, config.pretrained_critic = None, gone
    check_environment(config, learns=False)
