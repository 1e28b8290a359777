"""A person takes over: what is executed, stored and counted, on environments known by hand."""

import dataclasses

import numpy as np
import pytest
from test_streams import (
    BETA,
    GRIPPER,
    LENGTH,
    Choosing,
    Commanding,
    GripperEnv,
    PlusHalf,
)
from toy import CountingEnv, CountingPolicy

from pld_ray.config import InterventionConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks.grippers import CLOSE, HOLD, OPEN
from pld_ray.policies import ChunkCache, Prediction
from pld_ray.rollout.intervention import NOTHING, Turn
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.scripted_person import ScriptedPerson
from pld_ray.rollout.streams import FinishedEpisodes, Streams
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

PERSON = np.float32([-0.75, -0.75, -0.75])


class Planned:
    """Acts, or ends an episode, at given steps (environment, episode, step)."""

    def __init__(self, acts=(), verdicts=(), action=PERSON):
        self.acts, self.verdicts, self.action = set(acts), dict(verdicts), action
        self.begun = []

    def begin(self, env_index):
        self.begun.append(env_index)

    def intervene(self, observation, stepping, env_steps):
        now = {
            i: (i, *map(int, observation["observation.state"][i]))
            for i in np.flatnonzero(stepping).tolist()
        }
        return Turn(
            {i: self.action for i, place in now.items() if place in self.acts},
            {i: self.verdicts[place] for i, place in now.items() if place in self.verdicts},
        )

    def close(self):
        pass


def play(person, steps, lengths=(6,), actor=None, policy=None, envs=None, seed=0, **params):
    """Finished episodes, environment steps, and the vector environment."""
    intervene, view = params.pop("intervene", True), params.pop("view", None)
    makers = envs or [lambda n=n: CountingEnv(n) for n in lengths]
    vector = BaseActionVectorEnv(makers, policy or CountingPolicy())
    env = InfosPerEnv(vector)
    observation, _ = env.reset(seed=0)
    streams = Streams(
        observation,
        vector.single_action_space,
        ResidualSACParams(**params),
        actor or PlusHalf(),
        np.random.default_rng(seed),
        base_only=False,
        intervenor=person,
        env=vector,
        view=view,
    )
    finished, request = FinishedEpisodes(), SampleRequest(1, intervene=intervene, env_steps=70)
    taken = sum(streams.step(env.step, request, 0, finished) for _ in range(steps))
    return finished, taken, vector


def test_what_the_person_does_is_executed_and_stored_beside_the_base_action():
    person = Planned([(0, 0, 2), (0, 0, 3)])
    finished, taken, vector = play(person, 6, use_probing=False)
    (columns,), (summary,) = finished.columns, finished.summaries
    assert taken == 6
    assert columns["intervened"].tolist() == [False, False, True, True, False, False, False]
    assert columns["residual_scale"].tolist() == [BETA, BETA, 0, 0, BETA, BETA, 0]
    np.testing.assert_array_equal(columns["action"][:-1], vector.envs[0].actions)
    np.testing.assert_array_equal(columns["action"][2:4], [PERSON, PERSON])
    # the base policy's chunks of two, asked at 0 and 2, and anew at 4, where the person let go
    asked_at = (100 * columns["base_action"][:, 1]).round().tolist()
    assert asked_at == [0, 0, 2, 2, 4, 4, 6]
    assert (summary.intervention_count, summary.intervention_steps) == (1, 2)
    assert summary.intervened


class Seen:
    """A view that keeps what it is shown."""

    def __init__(self):
        self.steps, self.ends = [], []

    def show(self, observation, action, person_acts):
        self.steps.append((*map(int, observation["observation.state"]), action, person_acts))

    def end_episode(self, success):
        self.ends.append(len(self.steps))


def test_a_view_is_shown_each_step_of_the_first_environment_with_what_it_answers():
    seen = Seen()
    person = Planned([(0, 0, 2), (1, 0, 1), (0, 1, 0)])
    _, _, vector = play(person, 11, lengths=(6, 4), use_probing=False, view=seen)
    places = [(episode, step) for episode, step, _, _ in seen.steps]
    assert places == [(0, t) for t in range(6)] + [(1, t) for t in range(4)]
    assert [at for at, (*_, acts) in enumerate(seen.steps) if acts] == [2, 6]
    executed = [action for *_, action, _ in seen.steps]
    np.testing.assert_array_equal(executed, vector.envs[0].actions)
    assert seen.ends == [6]


def test_on_release_the_chunk_starts_afresh_in_that_environment_alone():
    person = Planned([(0, 0, 2)])
    finished, _, _ = play(person, 6, lengths=(6, 6), use_probing=False)
    asked_at = [(100 * c["base_action"][:, 1]).round().tolist() for c in finished.columns]
    assert asked_at == [[0, 0, 2, 3, 3, 5, 5], [0, 0, 2, 2, 4, 4, 6]]
    # and the successor's base action is the one that was composed with
    composed = finished.columns[0]["action"] - np.float32([0, 0, 0.5])
    np.testing.assert_allclose(
        composed[[0, 1, 3, 4, 5]], finished.columns[0]["base_action"][[0, 1, 3, 4, 5]], atol=1e-6
    )


def test_each_taking_over_is_counted_and_each_step_once():
    acts = [(0, 0, t) for t in (0, 1, 3, 5)] + [(1, 1, t) for t in range(4)]
    finished, taken, _ = play(Planned(acts), 11, lengths=(6, 4), use_probing=False)
    by_env = {(s.env_index, s.start): s for s in finished.summaries}
    assert by_env[0, 0].intervention_count == 3
    assert by_env[0, 0].intervention_steps == 4
    assert not by_env[1, 0].intervened
    assert (by_env[1, 4].intervention_count, by_env[1, 4].intervention_steps) == (1, 4)
    assert taken == 2 * 11 - 3  # three resets


def test_an_intervention_ends_probing_and_its_rows_are_stored():
    params = {"probe_steps": 6, "seed": 3}
    probing = play(None, 6, **params)[0].summaries[0].probe_steps
    assert probing > 2
    finished, _, _ = play(Planned([(0, 0, 2)]), 6, **params)
    (columns,), (summary,) = finished.columns, finished.summaries
    assert summary.probe_steps == 2
    assert summary.residual_acted
    assert columns["observation.state"][:, 1].tolist() == [2, 3, 4, 5, 6]
    assert columns["intervened"].tolist() == [True, False, False, False, False]
    assert columns["residual_scale"].tolist() == [0, BETA, BETA, BETA, 0]


def test_the_person_s_action_is_clipped_to_the_action_space():
    person = Planned([(0, 0, 1)], action=np.float32([9, -9, 0]))
    columns = play(person, 6, use_probing=False)[0].columns[0]
    assert columns["action"][1].tolist() == [1, -1, 0]


def test_a_request_that_lets_nobody_intervene_asks_nobody():
    person = Planned([(0, 0, 1)])
    finished, _, _ = play(person, 6, use_probing=False, intervene=False)
    assert not finished.columns[0]["intervened"].any()


@pytest.mark.parametrize(("verdict", "reward"), [("success", 1.0), ("failure", 0.0)])
def test_a_person_s_verdict_ends_the_episode(verdict, reward):
    finished, taken, vector = play(Planned(verdicts={(0, 0, 3): verdict}), 6, use_probing=False)
    (columns,), (summary,) = finished.columns, finished.summaries
    assert taken == 5  # four, a reset, one
    assert summary.length == 4
    assert summary.success == (verdict == "success")
    assert not summary.intervened
    assert columns["reward"].tolist() == [0, 0, 0, reward, 0]
    assert columns["terminated"].tolist() == [False, False, False, True, False]
    assert vector.envs[0].episode == 1


def test_a_discarded_episode_leaves_nothing_but_its_steps():
    finished, taken, vector = play(
        Planned([(0, 0, 1)], {(0, 0, 5): "discard"}), 13, use_probing=False
    )
    assert taken == 12
    assert [c["observation.state"][0, 0] for c in finished.columns] == [1]
    assert len(finished.summaries) == 1
    assert finished.num_env_failures == 0
    assert vector.envs[0].episode == 1


def test_exploration_noise_starts_afresh_on_release():
    @dataclasses.dataclass
    class Noisy(PlusHalf):
        def act(self, observation, noise=None, forced_choice=None):
            self.noises.append(noise.copy())
            return observation["base_action"], None

    def noises(person):
        actor = Noisy()
        actor.noises = []
        play(person, 6, lengths=(6, 6), actor=actor, use_probing=False,
             exploration_noise="held", exploration_hold=100)  # fmt: skip
        return np.stack(actor.noises)

    held = noises(None)
    assert (held == held[0]).all()
    helped = noises(Planned([(0, 0, 1), (0, 0, 2)]))
    assert (helped[:3, 0] == held[0, 0]).all()
    assert (helped[3:, 0] == helped[3, 0]).all()
    assert (helped[3, 0] != held[0, 0]).all()
    assert (helped[:, 1] == held[0, 1]).all()


# --- grippers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [[GRIPPER], [GRIPPER, 0]])
def test_gripper_labels_and_penalties_are_of_the_person_s_command(dims):
    """The critic chooses CLOSE, HOLD, CLOSE, ...; the person opens what is closed at step 1."""
    action = np.float32([1, 0, -1])  # with two grippers: the second closes
    person = Planned([(i, 0, 1) for i in range(2)], action=action)
    finished, _, _ = play(
        person, LENGTH, envs=[GripperEnv, GripperEnv], policy=Commanding([0.0]),
        actor=Choosing(), gripper="discrete", gripper_dims=dims, grasp_penalty=0.25,
        compose_base=False, use_probing=False,
    )  # fmt: skip
    for columns in finished.columns:
        labels = columns["discrete_action"][:4].astype(int).tolist()
        opened = OPEN if len(dims) == 1 else OPEN + 3 * CLOSE
        assert labels == [CLOSE, opened, CLOSE, HOLD]
        changed = -0.25 * len(dims)
        assert columns["discrete_penalty"][:4].tolist() == [-0.25, changed, -0.25, 0]
        assert columns["action"][1, GRIPPER] == -1


# --- the chunk cache -----------------------------------------------------------------------------


class LookingBack(CountingPolicy):
    """Chunks of three that carry the steps of its two observations."""

    n_action_steps, n_obs_steps = 3, 2

    def infer(self, observations, tasks, env_ids, seeds=None):
        window = observations["observation.state"]
        chunk = np.zeros((len(window), 3, 3), dtype=np.float32)
        chunk[:, :, :2] = window[:, None, :, 1] / 100
        chunk[:, :, 2] = np.arange(3) / 100
        return Prediction(chunk)


def test_replanning_sees_the_window_that_acting_saw():
    cache = ChunkCache(LookingBack(), 2)
    cache.reset([0, 1])
    for step in range(3):
        states = {"observation.state": np.float32([[0, step], [0, step + 50]])}
        actions = cache.act(states, ["", ""])
        if step in (0, 1):
            again = cache.replan({"observation.state": np.float32([[0, step]])}, [""], [0])
            expected = [max(0, step - 1), step, 0]
            np.testing.assert_allclose(100 * again[0], expected, atol=1e-5)
    np.testing.assert_allclose(100 * actions, [[0, 1, 1], [50, 50, 2]], atol=1e-5)


# --- the scripted person -------------------------------------------------------------------------


class Walk:
    """`remaining` as told; its action names the environment."""

    def __init__(self, remaining):
        self.left = iter(remaining)

    def remaining(self):
        return next(self.left)

    def act(self):
        return PERSON


def turns(person, steps, num_envs=1, env_steps=0):
    stepping = np.ones(num_envs, bool)
    return [sorted(person.intervene({}, stepping, env_steps).actions) for _ in range(steps)]


def scripted(walks, **options):
    rng = np.random.default_rng(0)
    options = InterventionConfig(device="scripted", **options)
    person = ScriptedPerson(lambda i: Walk(walks[i]), len(walks), options, rng)
    for i in range(len(walks)):
        person.begin(i)
    return person


def test_the_scripted_person_waits_for_progress_and_takes_over_without():
    stuck, walking = [1.0] * 99, [1.0 - 0.02 * t for t in range(99)]
    person = scripted([stuck, walking], patience_steps=4)
    assert turns(person, 7, 2) == [[]] * 4 + [[0]] * 3
    person.begin(0)
    assert turns(person, 5, 2) == [[]] * 4 + [[0]]


def test_the_scripted_person_lets_go_after_its_hold_and_looks_again():
    person = scripted([[1.0] * 99], patience_steps=2, hold_steps=3)
    acts = [bool(turn) for turn in turns(person, 12)]
    assert acts == [False, False, *[True] * 3, False, False, *[True] * 3, False, False]


def test_random_takeovers_fade_over_environment_steps():
    options = {"takeover": "random", "probability": 0.5, "decay_steps": 1000, "hold_steps": 1}
    shares = [
        np.mean([bool(t) for t in turns(scripted([[]], **options), 2000, env_steps=steps)])
        for steps in (0, 500, 1000, 5000)
    ]
    assert shares[0] == pytest.approx(0.5, abs=0.04)
    assert shares[1] == pytest.approx(0.25, abs=0.04)
    assert shares[2:] == [0, 0]


def test_help_where_nothing_moves_fades_too_and_waits_again_where_it_is_not_given():
    options = {"patience_steps": 4, "hold_steps": 1, "decay_steps": 1000}
    stuck = [[1.0] * 4000]
    shares = [
        np.mean([bool(t) for t in turns(scripted(stuck, **options), 4000, env_steps=steps)])
        for steps in (0, 500, 1000)
    ]
    # a period is four steps of patience and, where help is given, one of it
    assert shares[0] == pytest.approx(1 / 5, abs=0.001)
    assert shares[1] == pytest.approx(0.5 / 4.5, abs=0.01)
    assert shares[2] == 0


def test_nothing_is_asked_where_a_reset_takes_no_action():
    person = scripted([[1.0] * 9], patience_steps=1)
    assert person.intervene({}, np.zeros(1, bool), 0) is NOTHING


def test_an_episode_begins_with_noise_of_its_own():
    @dataclasses.dataclass
    class Noisy(PlusHalf):
        def act(self, observation, noise=None, forced_choice=None):
            noises.append(noise.copy())
            return observation["base_action"], None

    noises = []
    play(None, 6, lengths=(3, 6), actor=Noisy(), use_probing=False,
         exploration_noise="held", exploration_hold=100)  # fmt: skip
    first, second = np.stack(noises).swapaxes(0, 1)
    assert (first[:3] == first[0]).all()
    assert (first[3:] != first[0]).all()
    assert (second == second[0]).all()


def test_where_the_environment_has_ended_the_episode_its_judgement_stands():
    finished, _, _ = play(
        Planned(verdicts={(0, 0, 3): "success"}), 5, lengths=(4,), use_probing=False
    )
    (columns,), (summary,) = finished.columns, finished.summaries
    assert not summary.success
    assert columns["reward"].tolist() == [0, 0, 0, 0, 0]
    assert columns["terminated"].tolist() == [False] * 5
