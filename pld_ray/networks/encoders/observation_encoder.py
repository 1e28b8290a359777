"""The observation encoder: state, cameras and task, each to its latent, side by side.

Seed 000, section 2; seed 004, sections 2.2, 5.1 and 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pld_ray.config.learner import LearnerParams
from pld_ray.networks.encoders.backbones import Backbone, build_backbone
from pld_ray.networks.encoders.frozen_features import FrozenFeatures
from pld_ray.networks.encoders.fusion import FUSIONS
from pld_ray.networks.encoders.image_spaces import check_image_spaces
from pld_ray.networks.encoders.of_policy import POLICY, read_policy_encoder
from pld_ray.networks.encoders.pooling import POOLINGS, ImageHead, vector_encoder
from pld_ray.networks.encoders.task_embedding import (
    LearnedTaskEmbedding,
    TextTaskEmbedding,
    embed_texts,
    stored_embeddings,
)

TASK_EMBEDDINGS = ("none", "learned", "text")


@dataclass(frozen=True)
class EncoderInputs:
    """What an observation consists of.

    Attributes:
        vector_dim: D, of the concatenated and normalised vector.
        images: camera column -> (H, W, 3).
        tasks: instructions, for the task embedding.
        feature_dim: F, of what a policy has made of cameras and task.
    """

    vector_dim: int
    images: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    feature_dim: int = 0


class ObservationEncoder(nn.Module):
    """x = [state, camera latents, task latent, given features], or a fusion of state and the rest.

    A frozen vision encoder is no part of this module: its feature maps come in. A trained one is,
    and serves all cameras in one pass. Every camera has a head of its own.

    Args:
        inputs: see `EncoderInputs`.
        params: `LearnerParams`.
        backbone: the vision encoder; None without images.
        fusion: `concat`, or of `FUSIONS`, which need something beside the state.

    Raises:
        ValueError: images that the vision encoder cannot read, or without one; an unknown pooling
            or task embedding; a task embedding without tasks or without a text model.
    """

    def __init__(
        self,
        inputs: EncoderInputs,
        params: LearnerParams,
        backbone: Backbone | None,
        fusion: str = "concat",
    ) -> None:
        super().__init__()
        self.cameras = list(inputs.images)
        width = params.state_encoder_hidden_dim
        self.state = vector_encoder(inputs.vector_dim, width) if width else None
        self.heads = make_heads(inputs.images, params, backbone)
        trained = bool(self.cameras) and not params.freeze_vision_encoder
        self.backbone = backbone if trained else None
        self.task = make_task_embedding(inputs.tasks, params)
        state_dim = width or inputs.vector_dim
        seen_dim = (
            params.latent_dim * len(self.cameras)
            + (params.task_embedding_dim if self.task is not None else 0)
            + inputs.feature_dim
        )
        self.fusion: nn.Module | None = None
        if fusion != "concat":
            self.fusion = FUSIONS[fusion](state_dim, seen_dim, params.latent_dim)
        self.output_dim = params.latent_dim if self.fusion is not None else state_dim + seen_dim
        """Z."""
        self.is_identity = self.state is None and not seen_dim
        """Whether the vector passes through unchanged, alone."""

    def forward(
        self,
        vector: Tensor,
        images: Mapping[str, Tensor] | None = None,
        task: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """x [B, Z] from the normalised vector [B, D].

        Args:
            vector: state.
            images: camera column -> [B, H, W, 3] uint8 for a trained vision encoder, feature maps
                [B, C, h, w] of a frozen one.
            task: task numbers [B] int64; None is task 0.
            features: [B, F], where the inputs have some.

        Raises:
            ValueError: a camera is missing, or its images or maps have another shape or dtype.
        """
        if self.is_identity:
            return vector
        state = vector if self.state is None else self.state(vector)
        parts = []
        if self.cameras:
            maps = self._feature_maps(images or {})
            parts += [head(m) for head, m in zip(self.heads, maps, strict=True)]
        if self.task is not None:
            if task is None:
                task = torch.zeros(len(vector), dtype=torch.int64, device=vector.device)
            parts.append(self.task(task))
        if features is not None:
            parts.append(features)
        if self.fusion is not None:
            return self.fusion(state, torch.cat(parts, dim=-1))
        return torch.cat([state, *parts], dim=-1)

    def _feature_maps(self, images: Mapping[str, Tensor]) -> list[Tensor]:
        """One feature map [B, C, h, w] per camera; a trained encoder runs once for all."""
        missing = [camera for camera in self.cameras if camera not in images]
        if missing:
            raise ValueError(f"observation encoder: no images of {missing}; it has {list(images)}")
        maps = [images[camera] for camera in self.cameras]
        if self.backbone is None:
            return maps
        return list(self.backbone(torch.cat(maps)).chunk(len(maps)))


def make_heads(
    images: Mapping[str, tuple[int, int, int]], params: LearnerParams, backbone: Backbone | None
) -> nn.ModuleList:
    """One `ImageHead` per camera."""
    if not images:
        return nn.ModuleList()
    if backbone is None:
        raise ValueError(
            f"vision_encoder_name={params.vision_encoder_name!r}: {list(images)} need a vision "
            "encoder; name one, for example resnet10, or give no images"
        )
    check_image_spaces({name: (shape, "uint8") for name, shape in images.items()}, backbone)
    height, width, _ = next(iter(images.values()))
    shape = backbone.feature_shape(height, width)
    if params.image_pooling == POLICY:
        return policy_heads(list(images), shape, params)
    return nn.ModuleList(
        ImageHead(shape, params.latent_dim, params.image_pooling, params.spatial_features)
        for _ in images
    )


def policy_heads(
    cameras: list[str], shape: tuple[int, int, int], params: LearnerParams
) -> nn.ModuleList:
    """What the policy itself makes of each camera's feature map, trained if its encoder is.

    Raises:
        ValueError: it has no such heads, or of another width or for maps of another size.
    """
    assert params.vision_encoder_weights is not None, "the backbone was read from it"
    where = f"image_pooling={POLICY}, the policy in {params.vision_encoder_weights}"
    states = read_policy_encoder(params.vision_encoder_weights).heads
    if missing := [camera for camera in cameras if not states.get(camera)]:
        raise ValueError(
            f"{where}: it has no pooling of {', '.join(missing)} that can be used alone; choose "
            "image_pooling=spatial_embeddings"
        )
    heads = nn.ModuleList()
    for camera in cameras:
        state = states[camera]
        kernel = state.get("pool.kernel")
        kind, features = ("average", 1) if kernel is None else (POOLINGS[0], kernel.shape[-1])
        width = len(state["project.0.weight"])
        if width != params.latent_dim:
            raise ValueError(f"{where}: {camera} is {width} wide there; set latent_dim={width}")
        if kernel is not None and kernel.shape[:3] != shape:
            raise ValueError(
                f"{where}: {camera} has feature maps of {tuple(kernel.shape[:3])} there and of "
                f"{shape} here; give images of the size that the policy was trained on"
            )
        head = ImageHead(shape, width, kind, features)
        head.load_state_dict(state)
        heads.append(head.requires_grad_(not params.freeze_vision_encoder))
    return heads


def make_task_embedding(tasks: tuple[str, ...], params: LearnerParams) -> nn.Module | None:
    """The embedding that the parameters ask for, or None."""
    kind, width = params.task_embedding, params.task_embedding_dim
    if kind not in TASK_EMBEDDINGS:
        raise ValueError(f"task_embedding={kind!r}: must be one of {', '.join(TASK_EMBEDDINGS)}")
    if kind == "none":
        return None
    if not tasks:
        raise ValueError(f"task_embedding={kind!r}: the environment names no task; set it to none")
    if kind == "learned":
        return LearnedTaskEmbedding(len(tasks), width)
    if not params.text_encoder_path:
        raise ValueError(
            "task_embedding='text' needs text_encoder_path: the folder of a saved Hugging Face "
            "text model"
        )
    path = params.text_encoder_path
    stored = path.endswith(".safetensors")  # of an exported policy, see `with_weights_of`
    embeddings = stored_embeddings(path) if stored else embed_texts(tasks, path)
    return TextTaskEmbedding(embeddings, width)


def frozen_features(inputs: EncoderInputs, params: LearnerParams) -> FrozenFeatures | None:
    """The frozen vision encoder, or None where there is none or it is trained."""
    if not inputs.images or not params.freeze_vision_encoder:
        return None
    return FrozenFeatures(make_backbone(params))


def make_backbone(params: LearnerParams) -> Backbone:
    """The vision encoder that the parameters name."""
    return build_backbone(
        params.vision_encoder_name,
        params.vision_encoder_weights,
        params.image_encoder_hidden_dim,
        params.vision_encoder_seed,
    )


def make_encoder(
    inputs: EncoderInputs,
    params: LearnerParams,
    frozen: FrozenFeatures | None,
    fusion: str = "concat",
) -> ObservationEncoder:
    """One observation encoder; a trained vision encoder belongs to it, a frozen one does not."""
    if not inputs.images:
        return ObservationEncoder(inputs, params, None, fusion)
    backbone = frozen.backbone if frozen else make_backbone(params)
    return ObservationEncoder(inputs, params, backbone, fusion)
