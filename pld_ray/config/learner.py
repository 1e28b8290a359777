"""What every learner here has, whatever it learns: replay, returns, optimisers, critics, encoder.

Each algorithm's own parameters are a subclass, which may give a field another default
(`with_default`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pld_ray.options import option


@dataclass
class LearnerParams:
    """Parameters that all algorithms share."""

    # --- replay -----------------------------------------------------------------------------------
    online_capacity: int = option(250_000, "Rows of the online ring.", within="[2, 1e9]")
    offline_capacity: int = option(100_000, "Rows of the offline ring.", within="[2, 1e9]")
    batch_size: int = option(
        256,
        "Transitions, or windows of chunks, per gradient step, half of them offline while the "
        "offline buffer is not empty.",
        within="[2, 1e6]",
    )
    reward_scale: float = option(
        1.0,
        "Factor on the environment's reward in everything that learns; returns and `value_range` "
        "are in units of the scaled reward. Experimental: no run to the end but at 1.",
        within="(0, 1e6]",
    )
    reward_bias: float = option(
        0.0,
        "Added to each step's scaled reward, as Cal-QL's -5: reward_scale * r + reward_bias. "
        "Experimental: no run to the end but at 0.",
        within="[-1e6, 1e6]",
    )

    # --- learning ---------------------------------------------------------------------------------
    gamma: float = option(0.98, "Discount per environment step.", within="(0, 1]")
    tau: float = option(0.005, "Soft target update (formula 15).", within="(0, 1]")
    utd: float = option(
        1.0, "Gradient steps (critic updates) per stored environment step.", within="[0, 1000]"
    )
    actor_lr: float = option(5e-4, "Learning rate of the actor.", within="(0, 10]")
    critic_lr: float = option(
        5e-4, "Learning rate of the critics, and of the encoder that they train.", within="(0, 10]"
    )
    weight_decay: float = option(
        0.0, "AdamW decay on actor and critic; 0 is plain Adam.", within="[0, 1000]"
    )
    grad_clip_norm: float = option(
        0.0,
        "Global norm to which the gradient of each optimiser is clipped; 0 switches it off.",
        within="[0, 1e9]",
    )

    ema_decay: float = option(
        0.0,
        "beta of the averaged actor, which acts and is exported; 0 acts with the actor itself.",
        within="[0, 1)",
    )

    # --- critic -----------------------------------------------------------------------------------
    num_critics: int = option(2, "Members N of the critic ensemble.", within="[1, 100]")
    num_subsample_critics: int = option(
        2,
        "Members M drawn at random for each target; M = N = 2 is clipped double Q.",
        within="[1, 100]",
    )
    target_reduction: Literal["min", "mean", "weighted"] = option(
        "min",
        "`min`, `mean` or `weighted` (learned softmax weights) over the drawn members in the TD "
        "target.",
    )
    actor_reduction: Literal["min", "mean", "weighted"] = option(
        "mean",
        "`min`, `mean` or `weighted` over all members where the actor's actions are judged: in its "
        "loss, and among candidates.",
    )
    critic_dropout: float = option(
        0.0, "Probability of dropping a hidden unit of a critic.", within="[0, 1)"
    )
    critic_atoms: int = option(
        51,
        "Each critic is categorical over that many returns in `value_range`, so that Q lies in "
        "it by construction; 1 regresses Q instead (formula 13).",
        within="[1, 1001]",
    )
    critic_smoothing: float = option(
        0.0,
        "Categorical critics learn a Gaussian of that standard deviation, in atoms, around the "
        "expected return (HL-Gauss; its authors' is 0.75) in place of the whole distribution of "
        "returns; 0 is that (C51). Experimental: can to bin gets further with it, milk of LIBERO "
        "falls far below its base policy on the way.",
        within="[0, 100]",
    )
    value_range: list[float] = option(
        [0.0, 1.0],
        "Lowest and highest return that the reward allows; Q outside counts as `q_out_of_bound`.",
        within="[-1e9, 1e9]",
        items=(2, 2),
    )

    # --- networks ---------------------------------------------------------------------------------
    hidden_dims: list[int] = option(
        [256, 256],
        "Widths of the actor's and each critic's hidden layers.",
        within="[1, 8192]",
        items=(1, 16),
    )
    critic_hidden_dims: list[int] = option(
        [],
        "Widths of each critic's hidden layers where they differ; empty is `hidden_dims`. "
        "Experimental: no run to the end but empty.",
        within="[1, 8192]",
        items=(0, 16),
    )
    critic_layer_norm: bool = option(True, "LayerNorm before each critic activation.")
    normalize_observations: bool = option(
        True, "Standardise observations with fixed statistics of the offline and warm-up data."
    )
    precision: Literal["float32", "bfloat16", "auto"] = option(
        "float32",
        "Of the matrix products that critics, a residual's actor and flows over states learn with; "
        "parameters, losses, targets and the residual that is played are float32 always. `auto` is "
        "what is faster: bfloat16 on a CPU that has instructions for it, float32 elsewhere.",
    )
    compile_backend: Literal["none", "inductor", "aot_eager"] = option(
        "none",
        "torch.compile backend for critics and actor: `none`, `inductor` (with a GPU) or "
        "`aot_eager`. Compiling takes a minute or more; on a CPU it does not pay.",
    )

    # --- observation encoder (seed 000, section 2; seed 004, sections 2.2, 5.1, 5.2) --------------
    vision_encoder_name: str = option(
        "none",
        "What reads camera images: `none`, `cnn`, `resnet10` (SERL's layout), "
        "`torchvision:NAME`, `timm:NAME`, or `policy`, the base policy's own (of ACT, or of a flow "
        "of ours).",
        values=("none", "cnn", "resnet10", "policy"),
        prefixes=("torchvision:", "timm:"),
    )
    vision_encoder_weights: str | None = option(
        None,
        "Local file with its weights; None starts at random, by `vision_encoder_seed`. With "
        "`policy` the folder of a policy; None is the base policy's.",
        path="any",
    )
    vision_encoder_seed: int = option(
        0,
        "Seed of random encoder weights, apart from the run's so that features can be shared.",
        within="[0, 4294967295]",
    )
    freeze_vision_encoder: bool = option(
        True,
        "Frozen: features are computed once per frame and stored. Otherwise it is trained with "
        "what reads it, on randomly shifted images.",
    )
    random_shift_pad: int = option(
        4,
        "DrQ: images of a trained encoder are shifted by up to so many pixels; 0 switches it off.",
        within="[0, 256]",
    )
    image_encoder_hidden_dim: int = option(32, "Channels of `cnn`.", within="[1, 4096]")
    image_pooling: Literal["spatial_embeddings", "average", "policy"] = option(
        "spatial_embeddings",
        "`spatial_embeddings` (learned) or `average` over the feature map, or `policy`: the "
        "latents of the flow of ours whose encoder it is, frozen with it.",
    )
    spatial_features: int = option(8, "Learned embeddings per channel.", within="[1, 1024]")
    latent_dim: int = option(
        256, "Width of each camera's latent, after Linear + LayerNorm + tanh.", within="[1, 8192]"
    )
    state_encoder_hidden_dim: int = option(
        0,
        "Width of the state's latent, after Linear + LayerNorm + tanh; 0 passes the vector "
        "through.",
        within="[0, 8192]",
    )
    task_embedding: Literal["none", "learned", "text"] = option(
        "none", "`none`, `learned` (one vector per task) or `text` (of a frozen local text model)."
    )
    task_embedding_dim: int = option(32, "Width of the task's latent.", within="[1, 8192]")
    text_encoder_path: str | None = option(
        None, "Folder of a Hugging Face text model, for `task_embedding=text`.", path="folder"
    )
