"""From a rollout's columns to replay rows."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.algorithm.shards import Shard
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.config import ConfigError
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.data.errors import DataError
from pld_ray.rllib import demonstrations, intake
from pld_ray.rllib.collection import BaseCollection
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.demonstrations import check_room, with_starts
from pld_ray.rllib.intake import of_successes, store_episodes
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.runners import to_store
from pld_ray.rollout.episode import EpisodeSummary, concatenate_episodes, split_episodes
from pld_ray.rollout.messages import EpisodeBatch, ReplayBatch

episodes = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5)


@given(episodes)
def test_each_row_knows_whether_its_episode_succeeded(episodes):
    steps = [np.zeros(length + 1, bool) for length, _ in episodes]
    for step, (length, success) in zip(steps, episodes, strict=True):
        step[length - 1] = success
    got = of_successes(np.concatenate(steps), [length for length, _ in episodes])
    expected = [success for length, success in episodes for _ in range(length + 1)]
    assert got.tolist() == expected


def test_the_replay_holds_it_where_the_loss_asks_for_it():
    """And not elsewhere: replays that were saved without it stay readable."""
    box = gym.spaces.Box(-1, 1, (3,), np.float32)
    spaces = gym.spaces.Dict({"observation.state": box, "base_action": box})
    lengths, rows = [4, 2], 8
    columns = {name: np.zeros((rows, 3), np.float32) for name in (*spaces, "action")}
    columns |= {name: np.zeros(rows, np.float32) for name in ("reward", "residual_scale")}
    flags = ("terminated", "truncated", "intervened", "success")
    columns |= {name: np.zeros(rows, bool) for name in flags}
    columns["terminated"][[3, 6]] = True
    columns["success"][3] = columns["reward"][3] = True  # the first episode
    for weight in (0.0, 0.1):
        params = ResidualSACParams(residual_dims=[], success_imitation=weight)
        schema = replay_schema(ResidualNetworks.of_spaces(spaces, box, params), spaces, box)
        replay = make_replay(schema, params, torch.device("cpu"), seed=0)
        store_episodes(replay.online, columns, lengths, params)
        batch = replay.sample(64, 1, params.gamma)
        assert ("succeeded" in batch) == bool(weight)
        if weight:
            assert torch.equal(batch["succeeded"], batch["mc_return"] > 0)
            assert 0 < batch["succeeded"].float().mean() < 1


def test_a_learner_takes_every_batch_whose_number_is_its_own(monkeypatch):
    taken = []

    def keep(ring, columns, *_):
        taken.append((ring, int(columns["reward"][0])))

    monkeypatch.setattr(intake, "store_episodes", keep)
    learner = intake.Intake()
    learner.shard = Shard(1, 3)
    learner.replay = SimpleNamespace(offline="offline", online="online")
    learner.params, learner.networks = None, SimpleNamespace(frozen_features=None)
    batches = [
        ReplayBatch({"reward": np.full(3, n)}, [2], "offline" if n == 7 else "online", shard=n)
        for n in range(9)
    ]
    learner.write(batches)
    assert taken == [("online", 1), ("online", 4), ("offline", 7)]


def test_frames_of_an_episode_with_a_person_in_it_are_encoded_once(monkeypatch):
    """It is stored twice: what the person did offline, all of it online."""
    encoded, taken = [], []

    def compute(images):
        encoded.append(len(images))
        return torch.from_numpy(images).half()

    monkeypatch.setattr(
        intake, "store_episodes", lambda ring, columns, *_: taken.append((ring, columns))
    )
    learner = intake.Intake()
    schema = SimpleNamespace(columns={"observation.features.front": None})
    learner.shard, learner.params = Shard(0, 1), SimpleNamespace(return_steps=1)
    learner.networks = SimpleNamespace(frozen_features=SimpleNamespace(compute=compute))
    online = SimpleNamespace(schema=schema)
    learner.replay = SimpleNamespace(offline="offline", online=online)
    columns = {name: np.arange(9) for name in ("observation.images.front", "reward")}
    columns["intervened"] = np.arange(9) == 4
    told = [EpisodeSummary(True, n, 0, intervention_steps=k) for n, k in ((2, 0), (2, 1), (2, 0))]
    batch, second = (EpisodeBatch(dict(columns), [2] * 3, told, 6) for _ in range(2))
    progress = Progress(ResidualScaleSchedule(ResidualSACParams()), utd=1.0)
    learner.write(to_store([batch, second], progress, MetricsLogger()))
    assert encoded == [9, 9]
    assert [ring for ring, _ in taken] == ["offline", online] * 2
    for ring, rows in taken:
        wanted = [3, 4, 5] if ring == "offline" else list(range(9))
        assert rows["reward"].tolist() == rows["observation.features.front"].tolist() == wanted


# --- what is collected ---------------------------------------------------------------------------


class Rehearsed:
    """Runners that bring these batches, one a round, and keep what they were asked."""

    def __init__(self, *rounds):
        self.rounds, self.seeds, self.asked = list(rounds), [], []

    def restart(self, seed):
        self.seeds.append(seed)

    def request(self, **how):
        self.asked.append(how)

    def gather(self, request):
        return [self.rounds.pop(0)]


class Keeping(list):
    """Learners that keep what they are given."""

    normalizer = "none yet"

    def store(self, batches):
        self.extend(batches)

    def fit_normalizer(self, normalizer):
        self.normalizer = normalizer


def played(*episodes, oldest=100):
    """A batch of (number, length, success), begun in the order of their numbers."""
    columns, lengths = concatenate_episodes(
        [
            {"reward": np.full(length + 1, number), "success": np.zeros(length + 1, bool)}
            for number, length, _ in episodes
        ]
    )
    told = [EpisodeSummary(success, length, 0, start=n) for n, length, success in episodes]
    return EpisodeBatch(columns, lengths, told, sum(lengths), oldest_start=oldest)


def collecting(runners, num_learners=0, policy="lerobot", **options):
    config = ResidualSACConfig().learners(num_learners=num_learners).base_policy(type=policy)
    config.training(collection_seed=4, **{"offline_episodes": 2, "warmup_steps": 6, **options})
    progress = Progress(ResidualScaleSchedule(config.learner_params()), utd=1.0)
    return BaseCollection(config, progress, Keeping(), runners)


def numbers(batch):
    """Which episodes a batch for the replay holds."""
    return [int(e["reward"][0]) for e in split_episodes(batch.columns, batch.episode_lengths)]


def test_first_successes_and_a_plain_warm_up_are_dealt_to_the_learners():
    """Of three successes two are wanted; three episodes have six steps."""
    runners = Rehearsed(played((1, 3, True), (0, 2, False), (2, 2, True), (3, 4, True)))
    collection = collecting(runners, num_learners=2)
    assert collection.step()
    found = [(b.buffer, b.shard, numbers(b)) for b in collection.learners]
    assert found == [
        *(("offline", 0, [1]), ("offline", 1, [2])),
        *(("online", 0, [0, 2]), ("online", 1, [1])),
    ]
    assert collection.learners.normalizer is None
    assert collection.progress.env_steps == collection.progress.collection_env_steps == 11
    assert collection.progress.collection_stored_steps == 7
    assert (collection.offline, collection.warmup) == ([], [])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"policy": "none"}, "policy.type=none: nobody collects successes"),
        ({"actor_loss": "hg_dagger", "offline_episodes": 0}, "imitates a person, and there is no"),
    ],
)
def test_what_nobody_will_ever_give_is_refused_before_anything_is_played(options, told):
    runners = Rehearsed()
    with pytest.raises(ConfigError, match=told):
        collecting(runners, **options).step()
    assert not runners.seeds


def test_a_failure_is_no_demonstration_and_the_collection_goes_on():
    runners = Rehearsed(played((0, 9, False)), played((1, 2, True), (2, 2, True)))
    collection = collecting(runners)
    assert [collection.step(), collection.step()] == [False, True]
    assert [numbers(b) for b in collection.learners] == [[1, 2], [0]]


def test_a_random_warm_up_has_episodes_of_its_own():
    runners = Rehearsed(played((0, 2, True), (1, 2, True)), played((2, 7, False)))
    collection = collecting(runners, warmup_actions="random")
    assert [collection.step(), collection.step()] == [False, True]
    assert [how["random_actions"] for how in runners.asked] == [False, True]
    assert len(set(runners.seeds)) == 2
    assert [numbers(b) for b in collection.learners] == [[0, 1], [2]]


def test_a_collection_that_is_resumed_keeps_what_it_has_and_plays_other_episodes(tmp_path):
    first = collecting(Rehearsed(played((3, 2, True), oldest=1)))  # held back: one began before
    assert not first.step()
    first.save(tmp_path)
    runners = Rehearsed(played((0, 4, False), (1, 2, True)))
    second = collecting(runners)
    second.load(tmp_path)
    assert second.progress.env_steps == 2
    assert second.step()
    assert [numbers(b) for b in second.learners] == [[3, 1], [3, 0]]
    assert second.progress.env_steps == 8
    assert len({*first.runners.seeds, *runners.seeds}) == 2


def test_a_round_of_a_cache_that_was_not_counted_is_not_counted_by_a_resume(tmp_path):
    first, second = collecting(Rehearsed()), collecting(Rehearsed())
    first.rounds, first._counted = [2, 5], 1
    first.save(tmp_path)
    second.load(tmp_path)
    assert second.progress.env_steps == 2


# --- demonstrations ------------------------------------------------------------------------------


def test_rows_of_a_dataset_without_marks_may_all_start_a_window():
    plain, marked = {"reward": np.zeros(3)}, {"reward": np.zeros(2), "start": np.array([1, 0])}
    assert with_starts([plain]) == [plain]
    found = [episode["start"].tolist() for episode in with_starts([plain, marked])]
    assert found == [[True] * 3, [1, 0]]


GRIPPERS = SimpleNamespace(
    gripper="discrete", gripper_dims=[6], compose_base=False, grasp_penalty=0.5
)


@pytest.mark.parametrize(
    ("here", "told", "left"),
    [
        ({}, {}, {"discrete_action", "discrete_penalty"}),
        ({}, {"grasp_penalty": 0.1}, {"discrete_action"}),
        ({}, {"compose_base": True}, {"discrete_penalty"}),
        ({"compose_base": True}, {"compose_base": False}, {"discrete_penalty"}),
        ({}, {"dims": [5, 6]}, set()),
        ({"compose_base": True}, None, {"discrete_action"}),
        ({}, None, set()),
        ({"gripper": "continuous"}, {}, set()),
    ],
)
def test_gripper_labels_stay_where_they_mean_the_same(here, told, left):
    grippers = demonstrations.gripper_meaning(SimpleNamespace(**{**vars(GRIPPERS), **here}))
    told = {} if told is None else {**demonstrations.gripper_meaning(GRIPPERS), **told}
    names = ("action", "discrete_action", "discrete_penalty")
    episode = dict.fromkeys(names, np.zeros(3))
    assert demonstrations.with_labels_of(episode, told, grippers).keys() == {"action", *left}


def test_base_actions_of_another_policy_are_computed_anew(monkeypatch):
    told = demonstrations.gripper_meaning(GRIPPERS)
    roots = {
        "mine": {"base_policy": "a", "grippers": told},
        "other": {"base_policy": "b"},
        "none": {},
    }
    datasets = [SimpleNamespace(root=root) for root in roots]
    made = ("reward", "base_action", "observation.features", "discrete_action", "discrete_penalty")

    def read(config, wanted, task):
        return [(d, 0, {name: np.zeros(3) for name in made}) for d in datasets]

    for name, found in (
        ("policy_identity", lambda config: "a"),
        ("open_all", lambda paths: datasets),
        ("recording_of", lambda dataset: roots[dataset.root]),
        ("read_demonstrations", read),
    ):
        monkeypatch.setattr(demonstrations, name, found)
    runners = SimpleNamespace(
        describe_environment=lambda: (None, "reach"),
        label_episodes=lambda episodes, task: [sorted(episode) for episode in episodes],
    )
    params = SimpleNamespace(offline_capacity=9)
    config = SimpleNamespace(
        learner_params=lambda: params, num_learners=0, demo_path=[*roots], **vars(GRIPPERS)
    )
    labelled = demonstrations.load_demonstrations(config, runners)
    assert labelled == [sorted(made), ["reward"], ["reward"]]
    params.offline_capacity = 8
    with pytest.raises(DataError, match="need 9 rows"):
        demonstrations.load_demonstrations(config, runners)


def test_each_learner_has_room_for_its_share_of_the_demonstrations():
    """Three episodes of four rows each, with their final frames."""
    check_room([3, 3, 3], 12)
    with pytest.raises(DataError, match=r"need 12 rows .*offline_capacity=11 .*raise it to 12"):
        check_room([3, 3, 3], 11)
    check_room([3, 3, 3], 15, num_learners=2)  # two of them at one learner, which has 8 rows
    with pytest.raises(DataError, match=r"dealt to 2 learners, need 16 rows .*raise it to 16"):
        check_room([3, 3, 3], 14, num_learners=2)
