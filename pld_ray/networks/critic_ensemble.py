"""N Q-functions as one batched module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pld_ray.networks.precision import MixedPrecision

Layer = tuple[Tensor, Tensor]  # weight and bias
HEAD_SCALE = 0.1  # of the output layer's initial weights
ROWS_IN_CACHE = 256  # of candidates, whose activations stay in a CPU's cache
START_SLOPE = 20.0  # of a categorical head's initial biases: the expectation starts at 5 %


class BatchedLinear(nn.Module):
    """N linear layers: weight [N, inputs, outputs], bias [N, 1, outputs], as `nn.Linear` starts."""

    def __init__(self, num_members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        weight = torch.empty(num_members, inputs, outputs).uniform_(-bound, bound)
        bias = torch.empty(num_members, 1, outputs).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def select(self, members: Tensor | None) -> Layer:
        """Weight and bias of these members [M] int64, or of all."""
        if members is None:
            return self.weight, self.bias
        return self.weight.index_select(0, members), self.bias.index_select(0, members)


class CriticEnsemble(MixedPrecision):
    """Q_1 .. Q_N (x, a): MLPs of equal shape, one matrix product a layer for all of them.

    The input is [observation, base_action (optional), action].

    With `num_atoms` > 1 each member is categorical: a distribution over evenly spaced returns in
    `value_range`, of which `forward` and `otf` give the expectation; Q then lies in that range by
    construction.

    Args:
        observation_dim: D.
        action_dim: A.
        num_critics: N.
        hidden_dims: widths of the hidden layers (ReLU).
        layer_norm: normalise before each ReLU. It has no affine parameters: the next layer has.
        observes_base_action: whether the base action is part of the input.
        dropout: probability of dropping a hidden unit, before the normalisation (DroQ); applied
            while `dropout_generator` is set.
        num_atoms: Z, 1 is a scalar critic.
        value_range: lowest and highest return of a categorical critic.
        weighted: has `reduction_logits` [N], the learned weights of `weighted` reductions.
        dtype: of the matrix products and of what lies between them; parameters, their gradients and
            all that is put out stay float32.
    """

    atoms: Tensor

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        num_critics: int = 2,
        hidden_dims: Sequence[int] = (256, 256),
        layer_norm: bool = True,
        observes_base_action: bool = True,
        dropout: float = 0.0,
        num_atoms: int = 1,
        value_range: tuple[float, float] = (0.0, 1.0),
        weighted: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.num_critics = num_critics
        self.dtype = dtype
        self.dropout = dropout
        self.dropout_generator: torch.Generator | None = None
        self.num_atoms = num_atoms
        self.layer_norm = layer_norm
        self.observes_base_action = observes_base_action
        self.context_dim = observation_dim + (action_dim if observes_base_action else 0)
        widths = [self.context_dim + action_dim, *hidden_dims, num_atoms]
        self.layers = nn.ModuleList(
            BatchedLinear(num_critics, inputs, outputs) for inputs, outputs in pairwise(widths)
        )
        with torch.no_grad():  # Q starts near 0, inside the bounds of a sparse reward
            head = cast(BatchedLinear, self.layers[-1])
            head.weight.mul_(HEAD_SCALE)
            head.bias.zero_()
        if num_atoms > 1:
            self.register_buffer("atoms", torch.linspace(*value_range, num_atoms))
            with torch.no_grad():  # Q starts near the low end
                head.bias.copy_(
                    (-START_SLOPE * torch.linspace(0, 1, num_atoms)).expand_as(head.bias)
                )
        self.reduction_logits = nn.Parameter(torch.zeros(num_critics)) if weighted else None

    def forward(
        self,
        observation: Tensor,
        base_action: Tensor,
        action: Tensor,
        members: Tensor | None = None,
    ) -> Tensor:
        """Q [N, B] at observation [B, D], base_action [B, A], action [B, A].

        Args:
            members: [M] int64, evaluate these only and return [M, B]; None means all.
        """
        return self.value(self.outputs(observation, base_action, action, members))

    def outputs(
        self,
        observation: Tensor,
        base_action: Tensor,
        action: Tensor,
        members: Tensor | None = None,
    ) -> Tensor:
        """What the members put out: Q [N, B]; of categorical ones log-probabilities [N, B, Z]."""
        (weight, bias), *later = self._select(members)
        x = torch.cat((self._context(observation, base_action), action), dim=-1).to(self.dtype)
        hidden = torch.baddbmm(bias, x.expand(len(weight), -1, -1), weight)
        return self._after_first_layer(hidden, later)

    def value(self, outputs: Tensor) -> Tensor:
        """Q of `outputs` or `otf_outputs`: the expectation of categorical members."""
        return outputs if self.num_atoms == 1 else outputs.exp() @ self.atoms

    def otf(self, observation: Tensor, base_action: Tensor, actions: Tensor) -> Tensor:
        """Q [N, K, B] at K candidate actions [K, B, A] of the same B observations.

        The observation's part of the first layer is computed once for all candidates; gradients
        reach `actions` without passing through it.
        """
        return self.value(self.otf_outputs(observation, base_action, actions))

    def otf_outputs(
        self,
        observation: Tensor,
        base_action: Tensor,
        actions: Tensor,
        members: Tensor | None = None,
    ) -> Tensor:
        """`outputs` at the candidates: [N, K, B], or of categorical members [N, K, B, Z]."""
        if len(actions) == 1 and not actions.requires_grad:  # nothing to share
            return self.outputs(observation, base_action, actions[0], members).unsqueeze(1)
        (weight, bias), *later = self._select(members)
        context = self._context(observation, base_action).to(self.dtype)
        context, actions = context.expand(len(weight), -1, -1), actions.to(self.dtype)
        shared = torch.baddbmm(bias, context, weight[:, : self.context_dim])
        own_weight = weight[:, self.context_dim :]
        together = max(1, len(actions))
        if actions.device.type == "cpu":  # twice as fast in small parts; a GPU takes all at once
            together = max(1, ROWS_IN_CACHE // max(1, actions.shape[1]))
        parts = [
            self._otf_part(shared, own_weight, part, later) for part in actions.split(together)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def logits_of(self, members: Tensor | None = None) -> Tensor | None:
        """`reduction_logits` of these members [M] int64, or of all; None without learned ones."""
        logits = self.reduction_logits
        return logits if logits is None or members is None else logits[members]

    def fixed_logits(self) -> Tensor | None:
        """`reduction_logits` for a loss that does not train them."""
        return None if self.reduction_logits is None else self.reduction_logits.detach()

    def _otf_part(
        self, shared: Tensor, own_weight: Tensor, actions: Tensor, later: Sequence[Layer]
    ) -> Tensor:
        """Outputs [N, k, B(, Z)] of the first layer's shared part [N, B, H], actions [k, B, A]."""
        (num_members, batch, width), k = shared.shape, len(actions)
        shared = shared.unsqueeze(1).expand(-1, k, -1, -1).reshape(num_members, k * batch, width)
        flat = actions.reshape(1, k * batch, -1).expand(num_members, -1, -1)
        hidden = torch.baddbmm(shared, flat, own_weight)
        return self._after_first_layer(hidden, later).unflatten(1, (k, batch))

    def _select(self, members: Tensor | None) -> list[Layer]:
        layers = [cast(BatchedLinear, layer).select(members) for layer in self.layers]
        return [(weight.to(self.dtype), bias.to(self.dtype)) for weight, bias in layers]

    def _context(self, observation: Tensor, base_action: Tensor) -> Tensor:
        if not self.observes_base_action:
            return observation
        return torch.cat((observation, base_action), dim=-1)

    def _after_first_layer(self, hidden: Tensor, later: Sequence[Layer]) -> Tensor:
        *middle, (last_weight, last_bias) = later
        for weight, bias in middle:
            hidden = torch.baddbmm(bias, self._activate(hidden), weight)
        features = self._activate(hidden)
        if self.num_atoms > 1:
            logits = torch.baddbmm(last_bias, features, last_weight)
            return torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        # with one output, a product and a sum beat a matrix product several times over
        product = features * last_weight.transpose(1, 2)
        return product.sum(-1, dtype=torch.float32) + last_bias.squeeze(-1)

    def _activate(self, hidden: Tensor) -> Tensor:
        if self.dropout and self.dropout_generator is not None:
            keep = torch.empty_like(hidden).bernoulli_(
                1.0 - self.dropout, generator=self.dropout_generator
            )
            hidden = hidden * keep / (1.0 - self.dropout)
        if self.layer_norm:
            hidden = F.layer_norm(hidden, hidden.shape[-1:])
        return torch.relu_(hidden)
