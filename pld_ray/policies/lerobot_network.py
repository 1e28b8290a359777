"""Building a LeRobot network and filling it with weights that are checked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import PreTrainedPolicy, get_policy_class
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from pld_ray.policies.checkpoint import CONFIG, PolicyCheckpoint
from pld_ray.policies.devices import check_device
from pld_ray.policies.lerobot_processors import local_pretrained

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EMBEDDING = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
LANGUAGE_HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
PROJECTORS = ("multi_modal_projector.linear.weight", "modality_projection.proj.weight")
NAMED = 5  # keys that an error message spells out


def load_config(checkpoint: PolicyCheckpoint, device: str, dtype: str | None) -> PreTrainedConfig:
    """The checkpoint's configuration, for inference on `device`.

    Raises:
        ValueError: it cannot be read, the device is absent, or it asks for something that a
            policy without state cannot do.
    """
    file = checkpoint.directory / CONFIG
    check_device(device)
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"base policy dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    try:
        config = PreTrainedConfig.from_pretrained(checkpoint.directory, local_files_only=True)
    except Exception as error:  # draccus raises its own kinds; the file is what the user can fix
        raise ValueError(f"{file} cannot be read: {error}") from error
    if config.use_peft:
        raise ValueError(f"{file} is of an adapter (use_peft): merge it into its base model first")
    if getattr(config, "temporal_ensemble_coeff", None) is not None:
        raise ValueError(
            f"{file} sets temporal_ensemble_coeff, which mixes chunks over time; base policies "
            "play one chunk at a time: set it to null and choose n_action_steps"
        )
    config.device = device
    # the checkpoint's weights replace these; asking torchvision for them would need the network
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None
    # would compile the whole of training and sampling, and rename the weights
    if hasattr(config, "compile_model"):
        config.compile_model = False
    if config.type in ("pi0", "pi05") and dtype is not None:
        config.dtype = dtype
    return config


def load_network(
    checkpoint: PolicyCheckpoint,
    config: PreTrainedConfig,
    dtype: str | None,
    vlm_path: str | Path | None = None,
) -> PreTrainedPolicy:
    """The frozen network in evaluation mode, see `load_trainable_network`."""
    network = load_trainable_network(checkpoint, config, dtype, vlm_path)
    return network.eval().requires_grad_(False)


def load_trainable_network(
    checkpoint: PolicyCheckpoint,
    config: PreTrainedConfig,
    dtype: str | None,
    vlm_path: str | Path | None = None,
) -> PreTrainedPolicy:
    """The network as LeRobot trains it, with every weight from the checkpoint.

    What the policy's own configuration freezes (SmolVLA's vision encoder) asks for no gradient.

    Args:
        checkpoint, config: from `open_checkpoint` and `load_config`.
        dtype: of the large weights of pi0, pi05 and smolvla; None is the checkpoint's.
        vlm_path: folder of SmolVLA's vision-language model (its configuration and tokeniser).

    Raises:
        FileNotFoundError: the vision-language model is not on this machine.
        ValueError: the network cannot be built, or a weight is missing, unknown, of another shape
            or not finite.
    """
    if config.type == "smolvla":
        config.vlm_model_name = local_pretrained(
            config.vlm_model_name, vlm_path, checkpoint, f"{CONFIG} names the language model"
        )
        config.load_vlm_weights = False
    try:
        policy = get_policy_class(config.type)(config)
    except Exception as error:  # of many kinds; the configuration is what the user can mend
        raise ValueError(f"{checkpoint.directory / CONFIG} cannot be built: {error}") from error
    weights = _current_names(config.type, _read_weights(checkpoint))
    _check_weights(policy, weights, checkpoint)
    if config.type == "smolvla":
        _cast_smolvla(policy, weights, dtype)
    policy.load_state_dict(weights, strict=False)  # checked above, with better words
    return policy.to(config.device)


def _read_weights(checkpoint: PolicyCheckpoint) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in checkpoint.weights:
        try:
            weights.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} cannot be read ({error}): copy it again") from error
    return weights


def _check_weights(
    policy: PreTrainedPolicy, given: dict[str, torch.Tensor], checkpoint: PolicyCheckpoint
) -> None:
    """Refuse weights of which not all, or not only, are the policy's, and NaN; names them."""
    expected = policy.state_dict()
    common = given.keys() & expected.keys()
    filled = {expected[name].data_ptr() for name in common}
    problems = {
        "missing": sorted(
            name
            for name in expected.keys() - given.keys()
            # stored once for several uses, or not used by inference
            if expected[name].data_ptr() not in filled and not name.endswith("lm_head.weight")
        ),
        "unknown": sorted(given.keys() - expected.keys()),
        "of another shape": sorted(
            f"{name} {tuple(given[name].shape)} instead of {tuple(expected[name].shape)}"
            for name in common
            if given[name].shape != expected[name].shape
        ),
        "not finite": sorted(name for name in common if not _is_finite(given[name])),
    }
    if any(problems.values()):
        found = "; ".join(f"{kind}: {_first(names)}" for kind, names in problems.items() if names)
        raise ValueError(
            f"{checkpoint.weights[0]} does not fit {CONFIG}: {found}. Copy both again from where "
            "the policy was trained"
        )


def _is_finite(weight: torch.Tensor) -> bool:
    if not weight.is_floating_point() or not weight.numel():
        return True
    if weight.itemsize == 1:  # float8 has no order
        weight = weight.float()
    return all(bound.isfinite() for bound in weight.aminmax())  # 50 times as fast as of each number


def _current_names(policy_type: str, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of this version of LeRobot for those of compiled modules and of openpi's files."""
    given = {name.replace("_orig_mod.", ""): tensor for name, tensor in given.items()}
    if policy_type not in ("pi0", "pi05"):
        return given
    given = {name.removeprefix("model."): tensor for name, tensor in given.items()}
    if EMBEDDING not in given and LANGUAGE_HEAD in given:
        given[EMBEDDING] = given[LANGUAGE_HEAD]  # openpi stores the two, which are one, once
    old, new = "time_mlp_", "action_time_mlp_"
    if policy_type == "pi05":
        old, new = new, old
    renamed = {
        f"model.{new + name.removeprefix(old) if name.startswith(old) else name}": tensor
        for name, tensor in given.items()
    }
    if policy_type == "pi05":  # has its state in the prompt; files made for both carry a layer
        renamed = {k: v for k, v in renamed.items() if not k.startswith("model.state_proj.")}
    return renamed


def _cast_smolvla(
    policy: PreTrainedPolicy, weights: dict[str, torch.Tensor], dtype: str | None
) -> None:
    """Both transformers in `dtype`, or in the one that they were saved in."""
    parts = policy.model.vlm_with_expert
    for name, part in (("vlm", parts.vlm), ("lm_expert", parts.lm_expert)):
        prefix = f"model.vlm_with_expert.{name}."
        saved = next(tensor.dtype for key, tensor in weights.items() if key.startswith(prefix))
        part.to(saved if dtype is None else DTYPES[dtype])


def prefix_cache_bytes(checkpoint: PolicyCheckpoint, cameras: int, text_tokens: int) -> int:
    """Bytes of one observation's keys and values in float32, by the shapes of the weights alone.

    Args:
        checkpoint: of a PI0, PI0.5 or SmolVLA policy.
        cameras: images of an observation.
        text_tokens: to which a prompt is padded.
    """
    shapes: dict[str, list[int]] = {}
    for path in checkpoint.weights:
        with safe_open(path, "pt") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    language = ("language_model.layers", "text_model.layers")
    keys = sum(
        shape[0]
        for name, shape in shapes.items()
        if name.endswith("k_proj.weight") and any(part in name for part in language)
    )
    patches, width = next(s for n, s in shapes.items() if "position_embedding.weight" in n)
    inputs = next(s for n, s in shapes.items() if n.endswith(PROJECTORS))[1]
    tokens = text_tokens + cameras * patches * width // inputs  # a projector joins some patches
    return tokens * 2 * keys * torch.float32.itemsize


def distinct_names(state: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Names of a state, one for each tensor: tied weights are stored once."""
    first: dict[tuple[int, torch.Size], str] = {}
    names = []
    for name, tensor in state.items():
        if tensor.numel() == 0 or first.setdefault((tensor.data_ptr(), tensor.shape), name) == name:
            names.append(name)
    return tuple(names)


def _first(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
