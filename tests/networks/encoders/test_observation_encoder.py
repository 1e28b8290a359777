"""Heads, embeddings and the whole observation encoder."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from pld_ray.networks.encoders import (
    EncoderInputs,
    FrozenFeatures,
    ImageHead,
    ObservationEncoder,
    SpatialLearnedEmbeddings,
    build_backbone,
)
from pld_ray.networks.encoders.fusion import FUSIONS

A, B = "observation.images.image", "observation.images.image2"
TASKS = ("lift the can", "place the can in the bin")


def params(**changes):
    values = {
        "vision_encoder_name": "cnn",
        "vision_encoder_weights": None,
        "freeze_vision_encoder": True,
        "image_encoder_hidden_dim": 8,
        "image_pooling": "spatial_embeddings",
        "spatial_features": 4,
        "latent_dim": 16,
        "state_encoder_hidden_dim": 0,
        "task_embedding": "none",
        "task_embedding_dim": 6,
        "text_encoder_path": None,
    }
    return SimpleNamespace(**(values | changes))


def make(cameras=(A, B), tasks=(), **changes):
    p = params(**changes)
    inputs = EncoderInputs(5, dict.fromkeys(cameras, (48, 48, 3)), tasks)
    backbone = build_backbone("cnn", None, 8, seed=0) if cameras else None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ObservationEncoder(inputs, p, backbone), backbone


def pictures(rows=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (rows, 48, 48, 3)
    return {c: torch.randint(0, 256, shape, dtype=torch.uint8, generator=g) for c in (A, B)}


def features(backbone, images):
    return {c: FrozenFeatures(backbone).compute(i) for c, i in images.items()}


def test_spatial_embeddings_equal_a_loop():
    pool = SpatialLearnedEmbeddings(3, 2, 4, num_features=5)
    assert pool.kernel.shape == (3, 2, 4, 5)
    x = torch.randn(4, 3, 2, 4)
    out = pool(x).detach()
    assert out.shape == (4, 3 * 5)
    for b in range(4):
        for c in range(3):
            for f in range(5):
                total = torch.tensor(0.0)
                for i in range(2):
                    for j in range(4):
                        total += x[b, c, i, j] * pool.kernel[c, i, j, f].detach()
                torch.testing.assert_close(out[b, 5 * c + f], total)


def test_state_alone_passes_through():
    encoder, _ = make(cameras=())
    vector = torch.randn(3, 5)
    assert encoder.is_identity
    assert encoder(vector) is vector
    assert not list(encoder.parameters())


def test_the_state_encoder_is_linear_layernorm_tanh():
    encoder, _ = make(cameras=(), state_encoder_hidden_dim=7)
    vector = torch.randn(3, 5)
    linear, norm, _ = encoder.state
    expected = torch.tanh(F.layer_norm(linear(vector), (7,), norm.weight, norm.bias))
    torch.testing.assert_close(encoder(vector), expected)
    assert encoder.output_dim == 7


@pytest.mark.parametrize("pooling", ["spatial_embeddings", "average"])
def test_a_frozen_encoder_is_no_part_of_the_module(pooling):
    encoder, backbone = make(image_pooling=pooling)
    x = encoder(torch.randn(3, 5), features(backbone, pictures()))
    assert x.shape == (3, encoder.output_dim) == (3, 5 + 2 * 16)
    assert not any("backbone" in key for key in encoder.state_dict())
    x.sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())
    assert all(p.grad is None for p in backbone.parameters())


def test_a_trained_encoder_learns_and_serves_all_cameras():
    encoder, backbone = make(freeze_vision_encoder=False)
    vector, images = torch.randn(3, 5), pictures()
    x = encoder(vector, images)
    x.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())
    # the same as giving its own features to a frozen one with the same heads
    frozen, _ = make()
    frozen.heads.load_state_dict(encoder.heads.state_dict())
    torch.testing.assert_close(frozen(vector, features(backbone, images)), x, rtol=5e-3, atol=5e-3)


def test_cameras_have_heads_of_their_own():
    encoder, backbone = make()
    vector = torch.zeros(3, 5)
    maps = features(backbone, pictures())
    x = encoder(vector, maps)
    swapped = encoder(vector, {A: maps[B], B: maps[A]})
    # camera A's map through B's head is another latent than through its own
    assert not torch.allclose(x[:, 5:21], swapped[:, 21:], atol=1e-3)
    # unless the heads are made equal: then swapping the maps swaps the latents
    encoder.heads[1].load_state_dict(encoder.heads[0].state_dict())
    x, swapped = encoder(vector, maps), encoder(vector, {A: maps[B], B: maps[A]})
    torch.testing.assert_close(x[:, 5:21], swapped[:, 21:])
    torch.testing.assert_close(x[:, 21:], swapped[:, 5:21])


def test_the_order_of_the_mapping_does_not_matter():
    encoder, backbone = make()
    maps = features(backbone, pictures())
    turned = {B: maps[B], A: maps[A]}
    vector = torch.zeros(3, 5)
    assert torch.equal(encoder(vector, maps), encoder(vector, turned))


def test_average_pooling_is_the_mean_over_positions():
    head = ImageHead((3, 2, 4), latent_dim=6, pooling="average")
    x = torch.randn(5, 3, 2, 4).half()
    linear, norm, _ = head.project
    mean = x.float().flatten(2).mean(2)
    expected = torch.tanh(F.layer_norm(linear(mean), (6,), norm.weight, norm.bias))
    torch.testing.assert_close(head(x), expected)


def test_a_copy_is_independent():
    encoder, _ = make(freeze_vision_encoder=False)
    target = copy.deepcopy(encoder)
    with torch.no_grad():
        for p in encoder.parameters():
            p.add_(1.0)
    pairs = zip(encoder.parameters(), target.parameters(), strict=True)
    assert all(torch.allclose(a, b + 1.0) for a, b in pairs)
    assert any(name.startswith("backbone.") for name, _ in target.named_parameters())


def test_learned_task_embeddings_tell_tasks_apart():
    encoder, _ = make(cameras=(), tasks=TASKS, task_embedding="learned")
    vector = torch.zeros(2, 5)
    x = encoder(vector, None, torch.tensor([0, 1]))
    torch.testing.assert_close(x[:, 5:], encoder.task.table.weight)
    torch.testing.assert_close(encoder(vector)[:, 5:], encoder.task.table.weight[[0, 0]])


def test_text_embeddings_are_a_projected_buffer(monkeypatch):
    table = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    asked = []
    monkeypatch.setattr(
        "pld_ray.networks.encoders.observation_encoder.embed_texts",
        lambda texts, folder: asked.append((texts, folder)) or table,
    )
    encoder, _ = make(cameras=(), tasks=TASKS, task_embedding="text", text_encoder_path="bert")
    assert asked == [(TASKS, "bert")]
    x = encoder(torch.zeros(3, 5), None, torch.tensor([1, 0, 1]))
    assert x.shape == (3, encoder.output_dim) == (3, 5 + 6)
    linear, norm, _ = encoder.task.project
    expected = torch.tanh(F.layer_norm(linear(table[[1, 0, 1]]), (6,), norm.weight, norm.bias))
    torch.testing.assert_close(x[:, 5:], expected)
    assert torch.equal(encoder.state_dict()["task.embeddings"], table)  # kept in checkpoints
    assert all(p is not encoder.task.embeddings for p in encoder.parameters())
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": TASKS, "task_embedding": "text"}, "needs text_encoder_path"),
        ({"task_embedding": "learned"}, "'learned': the environment names no task"),
        ({"task_embedding": "word2vec"}, "'word2vec': must be one of none, learned, text"),
        ({"cameras": (A,), "image_pooling": "max"}, "'max': must be one of spatial_embeddings"),
    ],
)
def test_parameters_that_make_no_encoder_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**{"cameras": (), **changes})


def test_images_that_make_no_encoder_are_refused():
    backbone = build_backbone("cnn", None, 8, seed=0)
    small, grey = EncoderInputs(5, {A: (32, 32, 3)}), EncoderInputs(5, {A: (48, 48, 1)})
    other = EncoderInputs(5, {A: (48, 48, 3), B: (48, 64, 3)})
    cases = ((small, "32 x 32 leave no"), (grey, "1 channels"), (other, "different sizes"))
    for inputs, message in cases:
        with pytest.raises(ValueError, match=message):
            ObservationEncoder(inputs, params(), backbone)
    with pytest.raises(ValueError, match="need a vision encoder"):
        ObservationEncoder(EncoderInputs(5, {A: (48, 48, 3)}), params(), None)


def test_wrong_inputs_are_named():
    vector, frozen, trained = torch.zeros(3, 5), make()[0], make(freeze_vision_encoder=False)[0]
    with pytest.raises(ValueError, match=r"no images of .'observation.images.image2'"):
        frozen(vector, {A: torch.zeros(3, 8, 1, 1)})
    with pytest.raises(ValueError, match=r"uint8.*computed by FrozenFeatures"):
        frozen(vector, pictures())
    with pytest.raises(ValueError, match=r"shape .3, 8, 2, 2., need floats .B, 8, 1, 1."):
        frozen(vector, dict.fromkeys((A, B), torch.zeros(3, 8, 2, 2)))
    with pytest.raises(ValueError, match=r"need torch.uint8"):
        trained(vector, {c: i.float() for c, i in pictures().items()})


@pytest.mark.parametrize("kind", ["add", "mlp"])
def test_a_fusion_is_its_formula(kind):
    torch.manual_seed(0)
    fusion = FUSIONS[kind](5, 7, 4)
    state, seen = torch.randn(3, 5), torch.randn(3, 7)

    def latent(layers, x):  # Linear -> LayerNorm -> tanh, with the norm's first scale and bias
        x = x @ layers[0].weight.T + layers[0].bias
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return x.tanh()

    if kind == "add":
        expected = latent(fusion.state, state) + latent(fusion.seen, seen)
    else:
        both = torch.cat([state, seen], -1) @ fusion.hidden.weight.T + fusion.hidden.bias
        expected = latent(fusion.project, both.clamp(min=0))
    torch.testing.assert_close(fusion(state, seen), expected)
    inputs = EncoderInputs(5, feature_dim=7)
    encoder = ObservationEncoder(inputs, params(), None, fusion=kind)
    assert encoder(state, features=seen).shape == (3, encoder.output_dim) == (3, 16)
    plain = ObservationEncoder(inputs, params(), None)
    assert torch.equal(plain(state, features=seen), torch.cat([state, seen], -1))
