"""Real LeRobot policies in miniature, saved with their processors and a local tokeniser.

The networks are LeRobot's own classes; only widths, depths and the vocabulary are small. Weights
are random and large, so that every observation, prompt and noise decides the answer: a freshly
initialised π0.5, for one, hardly sees what it is shown.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies import get_policy_class, make_policy_config, make_pre_post_processors

from pld_ray.policies.lerobot_adapter import LeRobotBasePolicy

STATE = "observation.state"
FRONT, WRIST = "observation.images.image", "observation.images.image2"
SIDE = 64  # pixels
VOCABULARY = 320
SENTENCES = (
    "pick up the can and place it in the bin",
    "Task: open the drawer, State: 0 1 2 3 4 5 6 7 8 9 128 255;\nAction: ",
)
TYPES = ("act", "diffusion", "smolvla", "pi0", "pi05")
STOCHASTIC = TYPES[1:]
VISION_LANGUAGE = TYPES[2:]


def save_policy(
    kind: str, folder: Path, seed: int = 0, text: object = None, vision: object = None, **settings
) -> Path:
    """Save a tiny policy of type `kind`, and beside it its tokeniser in `folder`/tokenizer."""
    tokenizer = save_smolvlm(folder / "tokenizer", text, vision)
    with small_networks():
        config = make_config(kind, str(tokenizer), **settings)
        policy = randomised(get_policy_class(kind)(config), seed)
    if kind == "smolvla":
        config.vlm_model_name = "nobody/tiny-vlm"  # as on the hub: a name, not a folder
    directory = folder / "checkpoint"
    policy.save_pretrained(directory)
    for processor in make_processors(config, tokenizer, seed):
        processor.save_pretrained(directory)
    return directory


def load_policy(directory: str | Path, **options) -> LeRobotBasePolicy:
    """`LeRobotBasePolicy` of such a checkpoint; a pool's replicas take it by name."""
    with small_networks():
        return LeRobotBasePolicy(directory, **options)


def make_config(kind: str, tokenizer: str, **settings: object):
    normalization = {
        "VISUAL": NormalizationMode.IDENTITY,
        "STATE": NormalizationMode.MEAN_STD,
        "ACTION": NormalizationMode.MEAN_STD,
    }
    common = {
        "device": "cpu",
        "push_to_hub": False,
        "normalization_mapping": normalization,
        "input_features": {
            FRONT: PolicyFeature(FeatureType.VISUAL, (3, SIDE, SIDE)),
            WRIST: PolicyFeature(FeatureType.VISUAL, (3, SIDE, SIDE)),
            STATE: PolicyFeature(FeatureType.STATE, (8,)),
        },
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (7,))},
        "n_action_steps": 4,
    }
    flow = {"chunk_size": 6, "max_state_dim": 10, "max_action_dim": 9, "tokenizer_max_length": 48}
    own = {
        "act": {
            "chunk_size": 6,
            "dim_model": 32,
            "n_heads": 2,
            "dim_feedforward": 64,
            "n_encoder_layers": 1,
            "use_vae": False,
            "latent_dim": 4,
            "pretrained_backbone_weights": None,
        },
        "diffusion": {
            "n_obs_steps": 2,
            "horizon": 8,
            "down_dims": (16, 32),
            "diffusion_step_embed_dim": 16,
            "spatial_softmax_num_keypoints": 4,
            "num_train_timesteps": 10,
            "num_inference_steps": 4,
            "pretrained_backbone_weights": None,
            "use_group_norm": True,
            "crop_shape": (60, 60),
            "use_separate_rgb_encoder_per_camera": False,
        },
        "smolvla": {
            **flow,
            "num_steps": 3,
            "num_vlm_layers": 4,
            "resize_imgs_with_padding": (32, 32),
            "vlm_model_name": tokenizer,
            "load_vlm_weights": False,
        },
        "pi0": {**flow, "num_inference_steps": 3, "image_resolution": (28, 28)},
        "pi05": {**flow, "num_inference_steps": 3, "image_resolution": (28, 28)},
    }
    return make_policy_config(kind, **{**common, **own[kind], **settings})


def make_processors(config, tokenizer: Path, seed: int):
    """LeRobot's pipelines with random statistics; the tokeniser is saved under a hub's name."""
    torch.manual_seed(seed)
    stats = {
        key: {"mean": torch.randn(n), "std": torch.rand(n) + 0.5}
        for key, n in ((STATE, 8), ("action", 7))
    }
    processor = importlib.import_module("lerobot.processor.tokenizer_processor")
    load = processor.AutoTokenizer.from_pretrained
    with mock.patch.object(
        processor.AutoTokenizer, "from_pretrained", lambda name, *a, **k: load(tokenizer, *a, **k)
    ):
        return make_pre_post_processors(config, dataset_stats=stats)


def randomised(policy, seed: int):
    """Weights of the size that keeps activations near 1, biases and norms included."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 10
        with torch.no_grad():
            if parameter.ndim > 1 or name.endswith("bias"):
                parameter.copy_(noise / fan_in**0.5)
            else:
                parameter.add_(0.3 * noise)
    return policy.eval()


@functools.cache
def _tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<image>", "<fake_token_around_image>"]
    special += ["<global-img>", "<end_of_utterance>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )


def save_smolvlm(folder: Path, text: object = None, vision: object = None) -> Path:
    """Configuration, tokeniser and processor of a tiny SmolVLM; a tokeniser for the others too.

    Args:
        folder: where to.
        text, vision: changes to the sizes of its two networks.
    """
    from transformers import (
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    config = SmolVLMConfig(
        text_config={
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": VOCABULARY,
            **(text or {}),
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            **(vision or {}),
        },
        image_token_id=4,
        pad_token_id=0,
    )
    config.save_pretrained(folder)
    processor = SmolVLMProcessor(
        SmolVLMImageProcessor(), _tokenizer(), SmolVLMVideoProcessor(), image_seq_len=4
    )
    processor.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def small_networks() -> Iterator[None]:
    """π0 and π0.5 have their sizes in the code: shrink them while a network is built."""
    with contextlib.ExitStack() as stack:
        for name in ("pi0", "pi05"):
            module = importlib.import_module(f"lerobot.policies.{name}.modeling_{name}")
            make_gemma = module.GemmaConfig
            sizes = {"gemma_2b": (48, 96), "gemma_300m": (32, 64)}

            def gemma(variant: str, make_gemma=make_gemma, sizes=sizes):
                width, mlp = sizes[variant]
                return make_gemma(width, 2, mlp, num_heads=8, num_kv_heads=1, head_dim=8)

            def vision_language(config, build=module.PaliGemmaForConditionalGenerationWithPiGemma):
                vision = config.vision_config
                vision.hidden_size, vision.intermediate_size, vision.projection_dim = 32, 64, 48
                vision.num_hidden_layers, vision.num_attention_heads = 2, 2
                config._vocab_size = config.text_config.vocab_size = VOCABULARY
                config.image_token_index = VOCABULARY - 1
                return build(config=config)

            def expert(config, build=module.PiGemmaForCausalLM):
                config.vocab_size = 8  # its embedding is thrown away
                return build(config=config)

            for attribute, replacement in (
                ("get_gemma_config", gemma),
                ("PaliGemmaForConditionalGenerationWithPiGemma", vision_language),
                ("PiGemmaForCausalLM", expert),
            ):
                stack.enter_context(mock.patch.object(module, attribute, replacement))
        yield


def make_observations(rows: int, seed: int, n_obs_steps: int = 1) -> dict[str, np.ndarray]:
    """What an environment gives: images channel-last in bytes; a time axis if more than one."""
    rng = np.random.default_rng(seed)
    window = () if n_obs_steps == 1 else (n_obs_steps,)
    images = {
        key: rng.integers(0, 256, (rows, *window, SIDE, SIDE, 3), dtype=np.uint8)
        for key in (FRONT, WRIST)
    }
    return {**images, STATE: rng.standard_normal((rows, *window, 8), dtype=np.float32)}


def make_tasks(rows: int) -> list[str]:
    """Instructions of different lengths."""
    words = ("pick up the can", "open", "place it in the bin, then close the drawer", "x")
    return [words[row % len(words)] for row in range(rows)]


def rows_of(observations, ids):
    """Observations of these rows."""
    return {key: value[ids] for key, value in observations.items()}


def select(request, ids):
    """The same of a whole request: observations, and lists with an entry a row."""
    observations, *lists = request
    return rows_of(observations, ids), *([values[i] for i in ids] for values in lists)
