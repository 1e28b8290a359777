"""Every parameter of Q-chunking (ACRLPD) beside those of `LearnerParams`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pld_ray.config.learner import LearnerParams
from pld_ray.config.residual_sac_checks import check_critic, check_encoder, need_field
from pld_ray.options import check_options, option, with_default


@dataclass
class ACRLPDParams(LearnerParams):
    """Parameters of ACRLPD: a flow policy over action chunks, improved by critics of chunks.

    Raises:
        ValueError: by `validate()`, naming the field, its value and the accepted range.
    """

    name: Literal["acrlpd"] = option(
        "acrlpd",
        "What tells this configuration from that of another algorithm. Experimental but for "
        "`--config_path=tabletop_chunked`, which was trained to the end with three seeds.",
    )

    # --- chunks ----------------------------------------------------------------------------------
    horizon: int = option(
        5, "H: actions of a chunk, which the critics judge together.", within="[1, 1000]"
    )
    n_action_steps: int | None = option(
        None,
        "Actions of a chunk that are played before the next one is planned; None is `horizon`.",
        within="[1, 1000]",
    )
    n_step: int = option(
        1,
        "Steps of the TD return, at least `horizon` of them; more go on with what the data did "
        "after the chunk (n-step returns without chunks: `horizon` 1).",
        within="[1, 1000]",
    )
    tail: Literal["pad", "drop"] = option(
        "pad",
        "Windows that an episode's end cuts: `pad` learns from them with what they hold, `drop` "
        "leaves them out.",
    )
    positive_share: float = option(
        0.1,
        "Least share of windows of successful episodes in a batch, in the part of either ring.",
        within="[0, 1]",
    )
    accumulation: int = option(
        1,
        "Micro-batches of an update for each learner, which bound its memory; times "
        "`learners.num_learners` they must divide `batch_size`. Experimental: no run to the end "
        "but at 1.",
        within="[1, 4096]",
    )

    # --- the policy and its improvement ----------------------------------------------------------
    actor: Literal["flow", "gaussian", "lerobot"] = option(
        "flow",
        "`flow`: an MLP over state vectors, and cameras where `vision_encoder_name` reads them. "
        "`gaussian`: a Gaussian over chunks, of the same. `lerobot`: the policy of `actor_path`, "
        "whole, cameras and task included. The last two are experimental: "
        "four runs of a Gaussian to the end, none of a policy.",
    )
    actor_path: str | None = option(
        None,
        "Folder of the PI0, PI0.5 or SmolVLA policy that actor=lerobot goes on training.",
        path="any",
    )
    actor_tokenizer_path: str | None = option(
        None, "Local folder of its tokeniser, where it names one on the hub.", path="any"
    )
    actor_task: str | None = option(None, "Instruction that it is told; None is the environment's.")
    improvement: Literal["best_of_n", "distill", "bptt", "sac"] = option(
        "best_of_n",
        "`best_of_n`: the policy is cloned from data, and the best of its candidates is played. "
        "`distill`: a one-step policy follows the flow and climbs Q (FQL), and one draw of it is "
        "played. `bptt`: the flow itself climbs Q through its steps while it clones. `sac`: a "
        "Gaussian climbs Q with its entropy while it clones. All but `best_of_n` are experimental: "
        "two runs of `distill` and four of `sac` to the end, behind it.",
    )
    num_candidates: int = option(
        32, "N: chunks among which the critics choose when acting.", within="[1, 1024]"
    )
    target_candidates: int = option(
        4,
        "N': chunks at a window's end among which the critics choose for the target; 1 takes one "
        "draw.",
        within="[1, 1024]",
    )
    flow_steps: int = option(10, "Euler steps from noise to a chunk.", within="[1, 1000]")
    fusion: Literal["concat", "add", "mlp"] = option(
        "concat",
        "How the critics join the state with what is seen beside it (camera latents, or the "
        "features of actor=lerobot): side by side, `add` the sum of a latent of each, `mlp` a "
        "hidden layer over both; the last two are `latent_dim` wide. Experimental: no run to the "
        "end but with `concat`.",
    )
    bc_episodes: Literal["positive", "all"] = option(
        "positive", "Whose windows the flow clones: successful episodes', or `all`."
    )
    distill_alpha: float = option(
        100.0, "Weight of the distance to the flow in the loss of `distill`.", within="[0, 1e6]"
    )
    critic_weight: float = option(1.0, "Weight of the critics' loss.", within="(0, 1e6]")
    actor_weight: float = option(
        1.0, "Weight of the loss that climbs Q; `best_of_n` has none.", within="(0, 1e6]"
    )
    bc_weight: float = option(0.01, "Weight of the flow's cloning loss.", within="(0, 1e6]")
    ema_decay: float = with_default(LearnerParams, "ema_decay", 0.999)
    temperature: float = option(
        0.0,
        "Weight of the entropy of a Gaussian's chunks at the start; then it is learnt. 0 leaves "
        "entropy out, as it must for a flow, which has no tractable log-probability.",
        within="[0, 1e6]",
    )
    target_entropy: float | None = option(
        None,
        "Entropy of a chunk, in nats, towards which the temperature is learnt; None is half a nat "
        "below zero for each of the chunk's values, H for each action dimension that moves.",
    )

    # --- phases ----------------------------------------------------------------------------------
    offline_updates: int = option(
        20_000, "Updates on the datasets before the first environment step.", within="[0, 1e10]"
    )

    # --- other defaults --------------------------------------------------------------------------
    gamma: float = with_default(LearnerParams, "gamma", 0.99)
    actor_lr: float = with_default(LearnerParams, "actor_lr", 3e-4)
    critic_lr: float = with_default(LearnerParams, "critic_lr", 3e-4)
    num_critics: int = with_default(LearnerParams, "num_critics", 10)
    hidden_dims: list[int] = with_default(LearnerParams, "hidden_dims", [256, 256, 256])

    @property
    def played(self) -> int:
        """Actions of a chunk that are played."""
        return self.horizon if self.n_action_steps is None else self.n_action_steps

    @property
    def return_steps(self) -> int:
        """Steps of a window: those of the chunk, or of a longer return."""
        return max(self.horizon, self.n_step)

    @property
    def acting_candidates(self) -> int:
        """Chunks drawn when acting."""
        return self.num_candidates if self.improvement == "best_of_n" else 1

    @property
    def target_draws(self) -> int:
        """Chunks drawn for the target."""
        return self.target_candidates if self.improvement == "best_of_n" else 1

    def validate(self) -> None:
        """Raise ValueError on the first field outside its range, or that another one excludes."""
        check_options(self, "algorithm.")
        check_critic(self)
        need = partial(need_field, self)
        need(
            self.played <= self.horizon,
            "n_action_steps",
            f"at most horizon={self.horizon}: a chunk holds no more actions",
        )
        need(
            self.temperature == 0 or self.actor == "gaussian",
            "temperature",
            "0: a flow has no tractable log-probability, so that its entropy cannot be weighed",
        )
        need(
            self.temperature == 0 or self.improvement == "sac",
            "temperature",
            f"0 with improvement={self.improvement}: sac alone weighs the entropy",
        )
        fitting = {
            "flow": ("best_of_n", "distill", "bptt"),
            "gaussian": ("best_of_n", "sac"),
            "lerobot": ("best_of_n", "bptt"),
        }[self.actor]
        need(
            self.improvement in fitting,
            "improvement",
            f"{' or '.join(fitting)} with actor={self.actor}",
        )
        need(
            (self.actor == "lerobot") == (self.actor_path is not None),
            "actor_path",
            "the folder of a policy with actor=lerobot, and None with any other",
        )
        need(
            self.batch_size % self.accumulation == 0,
            "batch_size",
            f"a multiple of accumulation={self.accumulation}",
        )
        self._check_encoder()

    def _check_encoder(self) -> None:
        """What reads cameras is there once, and what joins its features has some."""
        need = partial(need_field, self)
        check_encoder(self)
        if self.actor == "lerobot":
            own = "with actor=lerobot, which reads cameras and task itself"
            need(self.vision_encoder_name == "none", "vision_encoder_name", f"none {own}")
            need(self.task_embedding == "none", "task_embedding", f"none {own}")
        need(
            self.fusion == "concat"
            or self.actor == "lerobot"
            or self.vision_encoder_name != "none"
            or self.task_embedding != "none",
            "fusion",
            "concat where the state is all that is seen: cameras need a vision_encoder_name",
        )
