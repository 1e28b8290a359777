"""The vision encoder of a trained policy: the same features, from the policy's folder alone."""

import json
import shutil

import numpy as np
import pytest
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies import make_pre_post_processors
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from safetensors.torch import load_file, save_file

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks.encoders import EncoderInputs, build_backbone, make_encoder
from pld_ray.networks.encoders.observation_encoder import frozen_features
from pld_ray.networks.encoders.weights import with_weights_in, with_weights_of
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy

CAMERAS = ("observation.images.image", "observation.images.image2")


def pictures(rows=2, size=64):
    return torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (rows, size, size, 3), dtype=np.uint8)
    )


def features_of(folder):
    return build_backbone("policy", str(folder), 32, seed=5)


@pytest.fixture(scope="module")
def act(tmp_path_factory):
    """An ACT with two cameras, whose images are not scaled as ImageNet's."""
    torch.manual_seed(3)
    config = ACTConfig(
        device="cpu",
        push_to_hub=False,
        chunk_size=4,
        n_action_steps=2,
        dim_model=16,
        n_heads=2,
        dim_feedforward=16,
        n_encoder_layers=1,
        n_decoder_layers=1,
        use_vae=False,
        pretrained_backbone_weights=None,
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
            **{name: PolicyFeature(FeatureType.VISUAL, (3, 64, 64)) for name in CAMERAS},
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
    )
    policy = ACTPolicy(config).eval()
    vector = {"mean": np.zeros(3), "std": np.ones(3)}
    image = {"mean": np.full((3, 1, 1), 0.4), "std": np.full((3, 1, 1), 0.2)}
    stats = {
        "observation.state": vector,
        "action": {"mean": np.zeros(2), "std": np.ones(2)},
        **dict.fromkeys(CAMERAS, image),
    }
    preprocess, postprocess = make_pre_post_processors(config, dataset_stats=stats)
    folder = tmp_path_factory.mktemp("act")
    for part in (policy, preprocess, postprocess):
        part.save_pretrained(folder)
    return folder, policy, preprocess


def test_act_s_encoder_sees_what_act_sees(act):
    folder, policy, preprocess = act
    images = pictures()
    floats = images.movedim(-1, 1) / 255.0
    batch = preprocess({"observation.state": torch.zeros(2, 3), **dict.fromkeys(CAMERAS, floats)})
    with torch.no_grad():
        expected = policy.model.backbone(batch[CAMERAS[0]])["feature_map"]
        found = features_of(folder)(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def flow(**options):
    params = ACRLPDParams(
        vision_encoder_name="cnn",
        image_encoder_hidden_dim=8,
        freeze_vision_encoder=False,
        num_candidates=1,
        hidden_dims=[16],
        num_critics=2,
        **options,
    )
    images = {CAMERAS[0]: (64, 64, 3)}
    torch.manual_seed(1)
    return ChunkedNetworks(3, 2, params, images=images)


@pytest.fixture
def flow_folder(tmp_path):
    networks = flow()
    shapes = {"observation.state": (3,), CAMERAS[0]: (64, 64, 3)}
    write_policy(tmp_path / "flow", ChunkPolicy(networks, shapes))
    return tmp_path / "flow", networks


def test_a_flow_s_encoder_is_the_one_that_acts(flow_folder):
    folder, networks = flow_folder
    own = networks.ema_actor.encoder.backbone
    assert torch.equal(features_of(folder)(pictures()), own(pictures()))
    assert features_of(folder).fingerprint() == own.fingerprint()


@pytest.mark.parametrize("frozen", [True, False])
def test_it_travels_in_the_folder_of_what_was_trained_on_it(flow_folder, tmp_path, frozen):
    folder, _ = flow_folder
    params = {
        "vision_encoder_name": "policy",
        "vision_encoder_weights": str(folder),
        "freeze_vision_encoder": frozen,
    }
    expected = features_of(folder).fingerprint()
    (tmp_path / "new").mkdir()
    written = with_weights_in(tmp_path / "new", params)
    shutil.rmtree(folder)
    found = with_weights_of(tmp_path / "new", written)
    assert features_of(found["vision_encoder_weights"]).fingerprint() == expected


def encoder_of(folder, cameras=CAMERAS[:1], side=64, **options):
    params = ResidualSACParams(
        vision_encoder_name="policy",
        vision_encoder_weights=str(folder),
        image_pooling="policy",
        **{"latent_dim": 24} | options,
    )
    params.validate()
    inputs = EncoderInputs(3, dict.fromkeys(cameras, (side, side, 3)))
    frozen = frozen_features(inputs, params)
    return make_encoder(inputs, params, frozen), frozen


@pytest.mark.parametrize("pooling", ["spatial_embeddings", "average"])
def test_its_latents_are_what_the_flow_acts_by(tmp_path, pooling):
    networks = flow(latent_dim=24, image_pooling=pooling)
    shapes = {"observation.state": (3,), CAMERAS[0]: (64, 64, 3)}
    write_policy(tmp_path / "flow", ChunkPolicy(networks, shapes))
    (tmp_path / "kept").mkdir()
    kept = {"vision_encoder_name": "policy", "vision_encoder_weights": str(tmp_path / "flow")}
    with_weights_in(tmp_path / "kept", kept)
    vector, images = torch.randn(2, 3), pictures()
    expected = networks.ema_actor.encoder(vector, {CAMERAS[0]: images})
    for folder in (tmp_path / "flow", tmp_path / "kept" / "vision_encoder"):
        encoder, frozen = encoder_of(folder)
        found = encoder(vector, {CAMERAS[0]: frozen.compute(images)})
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
        assert not any(p.requires_grad for p in encoder.parameters())
        trained, _ = encoder_of(folder, freeze_vision_encoder=False)
        torch.testing.assert_close(trained(vector, {CAMERAS[0]: images}), expected)
        assert all(p.requires_grad for p in trained.heads.parameters())


def test_latents_that_do_not_fit_are_refused(flow_folder, act):
    folder, _ = flow_folder
    with pytest.raises(
        ValueError, match=r"image_pooling=policy.* 256 wide there; set latent_dim=2"
    ):
        encoder_of(folder)
    with pytest.raises(ValueError, match=r"no pooling of observation\.images\.image2 that can be"):
        encoder_of(folder, CAMERAS, latent_dim=256)
    with pytest.raises(ValueError, match=r"has no pooling of .* image_pooling=spatial_embeddings"):
        encoder_of(act[0], latent_dim=256)
    with pytest.raises(ValueError, match=r"there and of .* here; give images of the size that"):
        encoder_of(folder, side=128, latent_dim=256)
    with pytest.raises(ValueError, match="image_pooling='policy': must be spatial_embeddings or"):
        ResidualSACParams(vision_encoder_name="cnn", image_pooling="policy").validate()


def broken(folder, **config):
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, **config}))


def test_what_has_no_such_encoder_is_refused(flow_folder, act, tmp_path):
    folder, _ = flow_folder
    with pytest.raises(ValueError, match="needs vision_encoder_weights: the folder of the policy"):
        build_backbone("policy", None, 32, seed=0)
    with pytest.raises(ValueError, match=r"weights=nowhere: not the folder of a policy"):
        features_of("nowhere")
    broken(folder, type="smolvla")
    with pytest.raises(ValueError, match=r"type 'smolvla' has no encoder .* name another encoder"):
        features_of(folder)
    copied = tmp_path / "act"
    shutil.copytree(act[0], copied)
    state = load_file(copied / "model.safetensors")
    save_file({k: v for k, v in state.items() if "backbone" not in k}, copied / "model.safetensors")
    with pytest.raises(ValueError, match="reads no camera; name another vision encoder"):
        features_of(copied)
    state["model.backbone.conv1.weight"] = torch.zeros(2, 2)
    save_file(state, copied / "model.safetensors")
    with pytest.raises(ValueError, match=r"do not fit 'torchvision:resnet18'.*folder is damaged"):
        features_of(copied)


def test_an_act_whose_images_nobody_scales_is_refused(act, tmp_path):
    copied = tmp_path / "act"
    shutil.copytree(act[0], copied)
    file = copied / "policy_preprocessor.json"
    described = json.loads(file.read_text())
    (normalizer,) = (s for s in described["steps"] if s["registry_name"] == "normalizer_processor")
    message = "policy_preprocessor.json does not scale images by mean .* name another encoder"
    others = [step for step in described["steps"] if step is not normalizer]
    normalizer["config"]["norm_map"]["VISUAL"] = "IDENTITY"
    for steps in (described["steps"], others):
        file.write_text(json.dumps({**described, "steps": steps}))
        with pytest.raises(ValueError, match=message):
            features_of(copied)
