"""Observation encoders: vision encoders, pooling, task embeddings, and frozen features."""

from pld_ray.networks.encoders.backbones import Backbone, build_backbone
from pld_ray.networks.encoders.convolutions import ResNet10, SmallCNN
from pld_ray.networks.encoders.frozen_features import FrozenFeatures, feature_key
from pld_ray.networks.encoders.image_spaces import check_image_spaces, image_shapes
from pld_ray.networks.encoders.observation_encoder import (
    EncoderInputs,
    ObservationEncoder,
    frozen_features,
    make_encoder,
)
from pld_ray.networks.encoders.pooling import ImageHead, SpatialLearnedEmbeddings
from pld_ray.networks.encoders.task_embedding import embed_texts

__all__ = [
    "Backbone",
    "EncoderInputs",
    "FrozenFeatures",
    "ImageHead",
    "ObservationEncoder",
    "ResNet10",
    "SmallCNN",
    "SpatialLearnedEmbeddings",
    "build_backbone",
    "check_image_spaces",
    "embed_texts",
    "feature_key",
    "frozen_features",
    "image_shapes",
    "make_encoder",
]
