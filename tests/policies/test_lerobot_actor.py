"""π0, π0.5 and SmolVLA as actors: LeRobot's own loss, and one prefix for all who need one."""

from __future__ import annotations

import copy
import json
from unittest import mock

import pytest
import torch
from tiny_actor import TASK, A, H, load, make_update
from tiny_policies import (
    SIDE,
    STATE,
    VISION_LANGUAGE,
    make_observations,
    save_policy,
    small_networks,
)

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import trained_parameters
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.policies import load_base_policy
from pld_ray.policies.actors import check_actor, load_actor
from pld_ray.policies.lerobot_actor import LeRobotActor, given, read_facts, write_actor

B, K = 3, 5


@pytest.fixture(scope="module", params=VISION_LANGUAGE)
def folder(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    return save_policy(request.param, root), root / "tokenizer"


@pytest.fixture(scope="module")
def actor(folder):
    return load(folder)


@pytest.fixture
def drawn(actor):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    return {
        "columns": {k: torch.from_numpy(v) for k, v in make_observations(B, 0).items()},
        "vector": normal(B, 8),
        "chunks": normal(B, H, A),
        "noise": normal(B, *actor.noise_shape),
        "time": torch.rand(B, generator=generator),
        "candidates": normal(K, B, *actor.noise_shape),
    }


def trained(actor):
    return [p for p in actor.parameters() if p.requires_grad]


def gradients(loss, actor):
    return torch.autograd.grad(loss, trained(actor), allow_unused=True, materialize_grads=True)


def bc_loss(actor, prefix, drawn, weights=None):
    weights = torch.ones(B, H) if weights is None else weights
    return actor.bc_loss(prefix, drawn["chunks"], weights, drawn["noise"], drawn["time"])


def lerobots_loss(actor, drawn):
    """LeRobot's `forward`: prefix and actions in one pass, with this noise and these times."""
    batch = {actor.names[k]: given(v) for k, v in drawn["columns"].items()}
    batch = actor._preprocess({**batch, "task": [TASK] * B})
    batch["action"] = drawn["chunks"]
    noise, time = drawn["noise"], drawn["time"]
    if actor.policy.config.type == "smolvla":
        return actor.policy.forward(batch, noise=noise, time=time)[0]
    with (
        mock.patch.object(actor.policy.model, "sample_noise", return_value=noise),
        mock.patch.object(actor.policy.model, "sample_time", return_value=time),
    ):
        return actor.policy.forward(batch)[0]


def test_the_loss_and_its_gradient_are_lerobots(actor, drawn):
    loss = bc_loss(actor, actor.observe(drawn["vector"], drawn["columns"]), drawn)
    reference = lerobots_loss(actor, drawn)
    assert loss.item() == pytest.approx(reference.item(), abs=1e-5)
    for ours, theirs in zip(gradients(loss, actor), gradients(reference, actor), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_one_prefix_gives_bit_for_bit_what_a_prefix_for_each_gives(actor, drawn):
    def observe():
        return actor.observe(drawn["vector"], drawn["columns"])

    shared = observe()
    features = actor.features(shared)
    with torch.no_grad():
        candidates = actor.sample(shared, drawn["candidates"])
    loss = bc_loss(actor, shared, drawn)
    assert shared.reads == 1
    assert torch.equal(features, actor.features(observe()))
    with torch.no_grad():
        assert torch.equal(candidates, actor.sample(observe(), drawn["candidates"]))
    alone = bc_loss(actor, observe(), drawn)
    assert torch.equal(loss, alone)
    for one, other in zip(gradients(loss, actor), gradients(alone, actor), strict=True):
        assert torch.equal(one, other)


def test_candidates_of_one_prefix_are_those_of_a_prefix_each(actor, drawn):
    with torch.no_grad():
        together = actor.sample(
            actor.observe(drawn["vector"], drawn["columns"]), drawn["candidates"]
        )
        for number in range(K):
            prefix = actor.observe(drawn["vector"], drawn["columns"])
            one = actor.sample(prefix, drawn["candidates"][number : number + 1])
            torch.testing.assert_close(together[number], one[0], atol=1e-5, rtol=1e-5)
    assert together.std(0).min() > 1e-3  # noise decides


def test_a_prefix_is_read_again_when_it_is_of_other_weights(folder, drawn):
    actor = load(folder)
    prefix = actor.observe(drawn["vector"], drawn["columns"])
    with torch.no_grad():
        before = actor.features(prefix)
        assert torch.equal(actor.features(prefix), before)
        assert prefix.reads == 1
    bc_loss(actor, prefix, drawn)  # wants a gradient
    assert prefix.reads == 2
    with torch.no_grad():
        actor.features(prefix)
        assert prefix.reads == 2
        for parameter in actor.parameters():
            parameter.add_(0.1)
        after = actor.features(prefix)
    assert prefix.reads == 3
    assert not torch.allclose(before, after)
    other = {**drawn["columns"]}
    camera = actor.cameras[0]
    other[camera] = 255 - other[camera]  # augmented
    with torch.no_grad():
        assert not torch.allclose(actor.features(actor.observe(drawn["vector"], other)), after)


def test_steps_without_weight_teach_nothing(actor, drawn):
    weights = torch.ones(B, H)
    weights[0] = 0
    prefix = actor.observe(drawn["vector"], drawn["columns"])
    spoilt = {**drawn, "chunks": drawn["chunks"].clone()}
    spoilt["chunks"][0] = 9.0
    assert torch.equal(
        bc_loss(actor, prefix, drawn, weights), bc_loss(actor, prefix, spoilt, weights)
    )


def test_actions_are_in_the_policys_own_units(actor):
    network = ChunkedNetworks(8, A, ACRLPDParams(horizon=H), seeing=actor, observation_keys=[STATE])
    actions = torch.randn(2, H, A) * 3
    batch = {STATE: torch.zeros(2, 8), "action": actions, "task": [TASK] * 2}
    batch |= {name: torch.zeros(2, 3, SIDE, SIDE) for name in actor.cameras}
    torch.testing.assert_close(
        network.to_unit(actions), actor._preprocess(batch)["action"], atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(network.from_unit(network.to_unit(actions)), actions)
    network.fit_actions(actions.flatten(0, 1))
    torch.testing.assert_close(network.from_unit(network.to_unit(actions)), actions)


@pytest.mark.parametrize("improvement", ["best_of_n", "bptt"])
def test_updates_train_it_average_it_and_leave_alone_what_is_frozen(folder, improvement):
    update = make_update(folder, improvement=improvement, bc_weight=1.0)
    networks = update.networks
    before = copy.deepcopy(networks.actor.state_dict())
    reads = []
    with mock.patch.object(
        LeRobotActor,
        "_parts",
        lambda self, columns, of=LeRobotActor._parts: (reads.append(1), of(self, columns))[1],
    ):
        means = update.run(2)
    # one for the windows' starts, one for their ends; bptt goes back through the first one too
    assert len(reads) == 4
    assert {"flow_loss", "critic_loss", "q_mean"} <= means.keys()
    assert ("q_policy" in means) == (improvement == "bptt")
    changed = {k for k, v in networks.actor.state_dict().items() if not torch.equal(v, before[k])}
    names = {name for name, p in networks.actor.named_parameters() if p.requires_grad}
    assert changed
    assert changed <= names | {n for n in before if before[n].data_ptr() == 0} | shared(networks)
    average = dict(networks.ema_actor.named_parameters())
    for name, parameter in networks.actor.named_parameters():
        assert (average[name] is parameter) == (not parameter.requires_grad)
    assert len(update.average) == len(trained_parameters(networks)["flow"])

    observation = {k: torch.from_numpy(v[:1]) for k, v in make_observations(1, 3).items()}
    noise = torch.randn(3, 1, *networks.actor.noise_shape)
    chunk = networks.act(observation, noise)
    assert chunk.shape == (1, H, A)
    networks.keep_what_acts()
    assert torch.equal(networks.act(observation, noise), chunk)


def shared(networks):
    """Further names of trained tensors, where weights are tied."""
    trained = {p.data_ptr() for p in networks.actor.parameters() if p.requires_grad}
    return {k for k, v in networks.actor.state_dict().items() if v.data_ptr() in trained}


def test_what_is_kept_of_an_observation_is_known_without_the_weights(actor, folder, drawn):
    cache = actor.observe(drawn["vector"], drawn["columns"])().cache
    kept = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache) / B
    facts = read_facts(folder[0], H)
    assert 0.9 * kept < facts.cache_bytes <= kept


def test_what_cannot_be_trained_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"chunk_size=6: algorithm.horizon=7 is more, lower it"):
        load(folder, horizon=7)
    act = save_policy("act", tmp_path / "act"), tmp_path / "act/tokenizer"
    with pytest.raises(ValueError, match=r"type 'act': algorithm\.actor_path takes .*pi0, pi05"):
        load(act)


def test_a_policy_without_statistics_is_refused(tmp_path):
    directory = save_policy("pi0", tmp_path)
    file = directory / "policy_postprocessor.json"
    steps = json.loads(file.read_text())
    for step in steps["steps"]:
        step.pop("state_file", None)
    file.write_text(json.dumps(steps))
    with pytest.raises(ValueError, match="has no statistics of them beside it"):
        load((directory, tmp_path / "tokenizer"))


@pytest.mark.parametrize("played", [None, 2])
def test_what_is_written_plays_as_many_actions_as_the_run_did(folder, tmp_path, played):
    params = ACRLPDParams(
        actor="lerobot",
        actor_path=str(folder[0]),
        actor_tokenizer_path=str(folder[1]),
        horizon=H,
        n_action_steps=played,
    )
    with small_networks():
        write_actor(load_actor(params, [TASK]), tmp_path / "policy")
        policy = load_base_policy(tmp_path / "policy", tokenizer_path=folder[1])
    assert (policy.n_action_steps, policy.chunk_size) == (played or H, H)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_what_is_written_acts_in_the_numbers_that_it_learnt_in(tmp_path, kind):
    """A folder of bfloat16 weights is trained in float32, and is one of float32 then."""
    folder = save_policy(kind, tmp_path, dtype="bfloat16"), tmp_path / "tokenizer"
    actor = load(folder)
    write_actor(actor, tmp_path / "out")
    assert json.loads((folder[0] / "config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float32"
    with small_networks():
        policy = load_base_policy(tmp_path / "out", tokenizer_path=folder[1], batch_rows=1)
    assert {p.dtype for p in policy._policy.parameters()} == {torch.float32}
    seen = make_observations(1, 0)
    played = policy.infer(seen, [TASK], [0], [7]).chunks[0]
    noise = torch.randn(actor.noise_shape, generator=torch.Generator().manual_seed(7))
    columns = {name: torch.from_numpy(column) for name, column in seen.items()}
    with torch.no_grad():
        chunk = actor.sample(actor.observe(columns[STATE], columns), noise[None, None])[0, 0]
    expected = actor.action_offset + actor.action_scale * chunk
    torch.testing.assert_close(torch.from_numpy(played), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_actions_relative_to_the_state_are_refused(tmp_path, kind):
    folder = save_policy(kind, tmp_path, use_relative_actions=True), tmp_path / "tokenizer"
    words = r"policy_postprocessor.json adds the state to actions.*use_relative_actions=true"
    with pytest.raises(ValueError, match=words):
        load(folder)
    params = ACRLPDParams(actor="lerobot", actor_path=str(folder[0]), horizon=H)
    with pytest.raises(ValueError, match=words):
        check_actor(params, [TASK])
