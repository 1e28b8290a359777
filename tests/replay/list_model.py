"""Episodes whose frames are numbered, and a list of episodes as the model of a ring."""

import numpy as np

from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema

ACT, GAMMA = 2, 0.9
FEATURES = "observation.features.image"


def schema(images=False, features=None, extras=False):
    """`features` is the fingerprint of their encoder."""
    scalar, flag, action = ColumnSpec(()), ColumnSpec((), "bool"), ColumnSpec((ACT,))
    columns = {
        "observation.environment_state": ColumnSpec((2,)),
        "observation.state": ColumnSpec((1,)),
        "base_action": action,
        "action": action,
        "reward": scalar,
        "terminated": flag,
        "truncated": flag,
        "residual_scale": scalar,
        "intervened": flag,
        "mc_return": scalar,
    }
    if images:
        columns["observation.images.image"] = ColumnSpec((4, 4, 3), "uint8")
    if features:
        columns[FEATURES] = ColumnSpec((5, 2, 3), "float16")
    if extras:
        columns["discrete_action"] = action
        columns["discrete_penalty"] = scalar
        columns["probing"] = flag
    keys = ["observation.state", "observation.environment_state"]
    return ReplaySchema(columns, keys, features)


def make_episode(number, length, terminated, images=False, features=False, extras=False, seed=0):
    """Frame t of episode `number` carries the id 1000 * number + t in its observation."""
    rng = np.random.default_rng([seed, number])
    rows = length + 1
    ids = (1000 * number + np.arange(rows)).astype(np.float32)
    episode = {
        "observation.state": ids[:, None],
        "observation.environment_state": np.stack([ids + 0.25, ids + 0.5], 1),
        "base_action": np.stack([ids, -ids], 1),
        "action": rng.standard_normal((rows, ACT)).astype(np.float32),
        "reward": rng.standard_normal(rows).astype(np.float32),
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
        "residual_scale": rng.random(rows).astype(np.float32),
        "intervened": rng.random(rows) < 0.3,
    }
    for name in ("action", "reward", "residual_scale", "intervened"):
        episode[name][-1] = 0
    episode["terminated" if terminated else "truncated"][length - 1] = True
    if images:
        image = rng.integers(0, 256, (rows, 4, 4, 3), dtype=np.uint8)
        image[:, 0, 0, 0], image[:, 0, 0, 1] = number % 256, np.arange(rows) % 256
        episode["observation.images.image"] = image
    if features:
        values = rng.standard_normal((rows, 5, 2, 3)).astype(np.float16)
        values[:, 0, 0, 0], values[:, 0, 0, 1] = number, np.arange(rows)
        episode[FEATURES] = values
    if extras:  # their final frames hold something, which no sample may show
        episode["discrete_action"] = rng.standard_normal((rows, ACT)).astype(np.float32)
        episode["discrete_penalty"] = rng.standard_normal(rows).astype(np.float32)
        episode["probing"] = rng.random(rows) < 0.5
    return episode


def join(episodes):
    return {key: np.concatenate([e[key] for e in episodes]) for key in episodes[0]}


def lengths(episodes):
    return [len(e["reward"]) - 1 for e in episodes]


class ListModel:
    """Episodes in a list; the oldest leave until the new one fits."""

    def __init__(self, capacity):
        self.capacity, self.episodes = capacity, []

    def add(self, episode):
        rows = len(episode["reward"])
        while sum(len(e["reward"]) for e in self.episodes) + rows > self.capacity:
            self.episodes.pop(0)
        self.episodes.append(episode)

    def transitions(self, n_step, gamma):
        """One dict per transition, written as the definition reads."""
        for e in self.episodes:
            length = len(e["reward"]) - 1
            for t in range(length):
                m = min(n_step, length - t)
                ended = e["terminated"][length - 1] and t + m == length
                extras = {}
                if "probing" in e:
                    extras = {name: e[name][t] for name in ("discrete_action", "probing")}
                    penalties = [gamma**k * e["discrete_penalty"][t + k] for k in range(m)]
                    extras["discrete_penalty"] = sum(penalties)
                yield extras | {
                    "observation": np.append(
                        e["observation.state"][t], e["observation.environment_state"][t]
                    ),
                    "next_observation": np.append(
                        e["observation.state"][t + m], e["observation.environment_state"][t + m]
                    ),
                    "base_action": e["base_action"][t],
                    "next_base_action": e["base_action"][t + m],
                    "action": e["action"][t],
                    "reward": sum(gamma**k * e["reward"][t + k] for k in range(m)),
                    "discount": 0.0 if ended else gamma**m,
                    "residual_scale": e["residual_scale"][t],
                    "intervened": e["intervened"][t],
                    "mc_return": return_to_go(e, t, gamma),
                }


def return_to_go(episode, t, gamma):
    """Of transition t; what failing for ever is worth, if the episode failed until it was cut."""
    rewards = episode["reward"][:-1].tolist()
    if not episode["terminated"].any() and min(rewards) == max(rewards) < 0:
        return rewards[0] / (1 - gamma)
    return sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards)))


def filled(capacity, batches, extras=False):
    ring = FrameRing(schema(extras=extras), capacity, seed=0)
    model, number = ListModel(capacity), 0
    for batch in batches:
        episodes = []
        for length, terminated in batch:
            episodes.append(make_episode(number, length, terminated, extras=extras))
            number += 1
        ring.add_episodes(join(episodes), lengths(episodes), GAMMA)
        for episode in episodes:
            model.add(episode)
    return ring, model
