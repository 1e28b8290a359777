"""Weights are the checkpoint's, every one of them, or there is no policy."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_policies import TYPES, VISION_LANGUAGE, make_observations, make_tasks

from pld_ray.policies import load_base_policy
from pld_ray.policies.checkpoint import open_checkpoint

HEAD = "model.paligemma_with_expert.paligemma.lm_head.weight"
EMBEDDING = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
REQUIRED = {
    "act": "model.action_head.weight",
    "diffusion": "diffusion.unet.final_conv.1.bias",
    "smolvla": "model.action_out_proj.weight",
    "pi0": "model.state_proj.weight",
    "pi05": "model.time_mlp_in.bias",
}


def infer(policy, rows=3):
    observations = make_observations(rows, 0, policy.n_obs_steps)
    return policy.infer(observations, make_tasks(rows), list(range(rows)), list(range(rows))).chunks


@pytest.fixture
def load_changed(tiny_directory, load_tiny, tmp_path):
    """Load a copy of a checkpoint whose weights went through `change`."""

    def load(kind, change):
        source = tiny_directory(kind)
        copy = shutil.copytree(source, tmp_path / kind)
        weights = change(load_file(copy / "model.safetensors"))
        save_file({k: v.clone() for k, v in weights.items()}, copy / "model.safetensors")
        options = {"tokenizer_path": source.parent / "tokenizer"} if kind in VISION_LANGUAGE else {}
        return load_tiny(copy, **options)

    return load


def without(name):
    return lambda weights: {k: v for k, v in weights.items() if k != name}


@pytest.mark.parametrize("kind", TYPES)
def test_a_missing_weight_is_named(load_changed, kind):
    with pytest.raises(ValueError, match=rf"does not fit config.json: missing: {REQUIRED[kind]}\."):
        load_changed(kind, without(REQUIRED[kind]))


@pytest.mark.parametrize("kind", TYPES)
def test_a_weight_of_another_shape_is_named(load_changed, kind):
    name = REQUIRED[kind]

    def change(weights):
        return {**weights, name: weights[name][:-1]}

    with pytest.raises(ValueError, match=rf"of another shape: {name} \(\d+,.*instead of"):
        load_changed(kind, change)


@pytest.mark.parametrize("kind", TYPES)
def test_unknown_weights_are_named(load_changed, kind):
    def change(weights):
        return {**weights, **{f"extra.{i}": weights[REQUIRED[kind]] for i in range(7)}}

    with pytest.raises(ValueError, match=r"unknown: (model\.)?extra.0, .* and 2 more"):
        load_changed(kind, change)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_weight_that_is_not_finite_is_named(load_changed, value):
    def change(weights):
        weights[REQUIRED["act"]][0, 0] = value
        return weights

    with pytest.raises(ValueError, match=rf"not finite: {REQUIRED['act']}\."):
        load_changed("act", change)


@pytest.mark.parametrize("kind", TYPES)
def test_every_weight_is_loaded(load_changed, tiny_policy, kind):
    """All floating weights halved: were one not loaded, it would keep its random start."""
    policy = load_changed(
        kind, lambda w: {k: v / 2 if v.is_floating_point() else v for k, v in w.items()}
    )
    halved, whole = policy._policy.state_dict(), tiny_policy(kind)._policy.state_dict()
    for name, weight in whole.items():
        if weight.is_floating_point() and not name.endswith("lm_head.weight"):
            np.testing.assert_array_equal(halved[name], weight / 2, err_msg=name)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_names_of_openpis_files_are_understood(load_changed, tiny_policy, kind):
    """No leading `model.`, the embedding stored as the language head, other names of the MLP."""
    old, new = ("action_time_mlp", "time_mlp") if kind == "pi0" else ("time_mlp", "action_time_mlp")

    def change(weights):
        weights = {k: v for k, v in weights.items() if k not in (HEAD, EMBEDDING)} | {
            HEAD: weights.get(EMBEDDING, weights.get(HEAD))
        }
        if kind == "pi05":
            weights["model.state_proj.weight"] = weights["model.time_mlp_in.weight"]
        return {k.removeprefix("model.").replace(old, new): v for k, v in weights.items()}

    np.testing.assert_array_equal(infer(load_changed(kind, change)), infer(tiny_policy(kind)))


def test_names_of_a_compiled_network_are_understood(load_changed, tiny_policy):
    def change(weights):
        return {k.replace(".unet.", ".unet._orig_mod."): v for k, v in weights.items()}

    changed = load_changed("diffusion", change)
    np.testing.assert_array_equal(infer(changed), infer(tiny_policy("diffusion")))


def test_smolvla_computes_in_the_dtype_that_it_was_saved_in(load_changed, load_tiny, tmp_path):
    """LeRobot trains it with the language model in bfloat16 and the rest in float32."""

    def change(weights):
        return {k: v.bfloat16() if ".vlm." in k else v for k, v in weights.items()}

    saved = load_changed("smolvla", change)
    full = load_tiny(
        tmp_path / "smolvla", dtype="float32", tokenizer_path=saved._policy.config.vlm_model_name
    )
    for policy, vlm in ((saved, torch.bfloat16), (full, torch.float32)):
        parts = policy._policy.model.vlm_with_expert
        assert {parameter.dtype for parameter in parts.vlm.parameters()} == {vlm}
        assert {parameter.dtype for parameter in parts.lm_expert.parameters()} == {torch.float32}
        assert np.isfinite(infer(policy)).all()


@pytest.fixture
def sharded(tiny_directory, tmp_path):
    """The weights of pi0 in two files and an index."""
    copy = shutil.copytree(tiny_directory("pi0"), tmp_path / "sharded")
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    index = {}
    for number, names in enumerate((sorted(weights)[::2], sorted(weights)[1::2])):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: weights[name] for name in names}, copy / file)
        index |= dict.fromkeys(names, file)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return copy


def test_sharded_weights(sharded, load_tiny, tiny_policy, tiny_directory):
    tokenizer = tiny_directory("pi0").parent / "tokenizer"
    policy = load_tiny(sharded, tokenizer_path=tokenizer)
    np.testing.assert_array_equal(infer(policy), infer(tiny_policy("pi0")))
    assert policy.fingerprint != tiny_policy("pi0").fingerprint
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00002.safetensors is missing"):
        load_tiny(sharded, tokenizer_path=tokenizer)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", r"index\.json has no 'weight_map'"),
        ('{"weight_map": {"a": "../../secret.safetensors"}}', r"must lie beside it"),
    ],
)
def test_a_bad_index_is_refused(sharded, load_tiny, content, message):
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_tiny(sharded)


@pytest.mark.parametrize("kind", TYPES)
def test_no_weights_is_an_error_and_not_a_random_policy(tiny_directory, load_tiny, tmp_path, kind):
    copy = shutil.copytree(tiny_directory(kind), tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors is missing.*random weights"):
        load_tiny(copy)


def test_a_truncated_file_is_named(tiny_directory, load_tiny, tmp_path):
    copy = shutil.copytree(tiny_directory("act"), tmp_path / "copy")
    content = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read.*copy it again"):
        load_tiny(copy)


def test_adapters_and_temporal_ensembles_are_refused(tiny_directory, load_tiny, tmp_path):
    for setting, message in (
        ({"use_peft": True}, "merge it into its base model"),
        ({"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}, "set it to null"),
    ):
        copy = shutil.copytree(tiny_directory("act"), tmp_path / next(iter(setting)))
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, **setting}))
        with pytest.raises(ValueError, match=message):
            load_tiny(copy)


def test_a_processor_step_of_another_library_is_not_run(tiny_directory, load_tiny, tmp_path):
    copy = shutil.copytree(tiny_directory("act"), tmp_path / "copy")
    file = copy / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    trace = tmp_path / "trace"
    step = {"class": "subprocess.Popen", "config": {"args": ["touch", str(trace)]}}
    file.write_text(json.dumps({**content, "steps": [step, *content["steps"]]}))
    with pytest.raises(ValueError, match=r"not registered in LeRobot \('subprocess.Popen'\)"):
        load_tiny(copy)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: torch.full_like(x, torch.nan), "have statistics that are not finite: copy"),
        (lambda x: torch.zeros(3), "do not fit what config.json declares: The size of tensor"),
    ],
)
@pytest.mark.parametrize("which", ["preprocessor", "postprocessor"])
def test_statistics_that_cannot_be_used_are_refused(
    act_directory, tmp_path, which, change, message
):
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    (file,) = copy.glob(f"policy_{which}_step_*.safetensors")
    save_file({name: change(values) for name, values in load_file(file).items()}, file)
    with pytest.raises(ValueError, match=f"the processors of {copy} {message}"):
        load_base_policy(copy)


@pytest.mark.parametrize("steps", [5, None, "abc", [5], {"a": {}}])
def test_a_processor_without_a_list_of_steps_is_named(act_directory, tmp_path, steps):
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    (copy / "policy_preprocessor.json").write_text(json.dumps({"steps": steps}))
    with pytest.raises(ValueError, match=r"preprocessor.json: 'steps' must be a list of objects"):
        open_checkpoint(copy)


def test_json_too_deep_to_be_read_is_named(act_directory, tmp_path):
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    (copy / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"config.json is not valid JSON .*: copy it again"):
        open_checkpoint(copy)
