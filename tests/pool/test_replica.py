import numpy as np

from pld_ray.policies import PolicyDescription, Prediction
from pld_ray.pool.replica import warm_up


class Looking:
    """Two cameras, a state and a history of two; keeps what it was asked."""

    action_dim, n_action_steps, fingerprint = 7, 4, "looking"
    input_features = {
        "observation.images.front": (3, 8, 6),
        "observation.image": (3, 4, 4),
        "observation.state": (5,),
    }
    n_obs_steps = 2

    def __init__(self, **attributes):
        self.asked, self.leftovers = [], []
        self.__dict__.update(attributes)

    def infer(self, observations, tasks, env_ids, seeds=None, leftovers=None):
        self.asked.append({key: (value.shape, value.dtype) for key, value in observations.items()})
        assert len(tasks) == len(env_ids) == len(seeds)
        self.leftovers.append(None if leftovers is None else leftovers.shape)
        chunks = np.zeros((len(tasks), 4, 7), dtype=np.float32)
        return Prediction(chunks, normalized=chunks)


def test_each_batch_shape_is_inferred_once_in_the_policys_own_format():
    policy = Looking()
    warm_up(policy, PolicyDescription.of(policy), max_batch_size=16)
    assert [asked["observation.state"] for asked in policy.asked] == [
        ((1, 2, 5), np.float32),
        ((16, 2, 5), np.float32),
    ]
    assert policy.asked[1]["observation.images.front"] == ((16, 2, 8, 6, 3), np.uint8)
    assert policy.asked[1]["observation.image"] == ((16, 2, 4, 4, 3), np.uint8)


def test_a_policy_that_pads_has_one_shape():
    policy = Looking(batch_rows=8, n_obs_steps=1)
    warm_up(policy, PolicyDescription.of(policy), max_batch_size=16)
    assert [asked["observation.state"][0] for asked in policy.asked] == [(8, 5)]


def test_optional_attributes_have_defaults():
    facts = PolicyDescription.of(Looking(n_obs_steps=1))
    assert (facts.chunk_size, facts.n_obs_steps, facts.feature_dim, facts.batch_rows) == (
        4,
        1,
        0,
        None,
    )


def test_both_paths_of_real_time_chunking_are_warmed_up():
    policy = Looking(rtc=True)
    warm_up(policy, PolicyDescription.of(policy), max_batch_size=2)
    assert policy.leftovers == [None, (1, 4, 7), None, (2, 4, 7)]
