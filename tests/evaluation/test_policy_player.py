"""A policy alone on stored init states."""

from __future__ import annotations

import contextlib
import gc
import weakref

from pld_ray.config import EnvConfig
from pld_ray.evaluation.policy_player import PolicyPlayer
from pld_ray.policies import load_base_policy

STATES = [0, 1]


def test_a_reward_classifier_does_not_judge_evaluations(tmp_path):
    """Its folder is not even opened; and the policy, which may lie on a GPU, is not kept."""
    policy, played = load_base_policy(), []
    for judge in (None, str(tmp_path / "classifier")):
        env = EnvConfig(task="lift_the_can", episode_length=60, reward_classifier=judge)
        with contextlib.closing(PolicyPlayer(env)) as player:
            played.append(player.play(policy, STATES))
            here = weakref.ref(policy)
            if judge:
                del policy
                gc.collect()
                assert here() is None
    assert played[0] == played[1]
    assert [episode.init_state_id for episode in played[0]["lift_the_can"]] == STATES
