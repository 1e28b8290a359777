"""Sampling and learning in rounds, in a fixed order: synchronous and pipelined."""

from __future__ import annotations

from pld_ray.rllib.learners import Learners
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.runners import Runners


class Rounds:
    """A round samples, stores, settles the update debt and publishes.

    Args:
        pipelined: the updates owed so far are made while the runners step, and what they bring is
            learnt from in the next round.
        progress, learners, runners: of the run.
    """

    def __init__(
        self, pipelined: bool, progress: Progress, learners: Learners, runners: Runners
    ) -> None:
        self.pipelined = pipelined
        self.progress, self.learners, self.runners = progress, learners, runners

    def step(self) -> None:
        """One round."""
        progress = self.progress
        request = self.runners.request(
            weights_updates=progress.published_updates,
            intervene=True,
            env_steps=progress.env_steps,
        )
        if self.pipelined:
            self._update()
        self.runners.deliver(request, progress, self.learners)
        if not self.pipelined:
            self._update()
        self.publish()

    def publish(self) -> None:
        """Give the runners the present weights, and beta of the steps that have come."""
        self.learners.set_residual_scale(self.progress.residual_scale)
        self.runners.publish(self.learners)
        self.progress.published_updates = self.progress.updates

    def _update(self) -> None:
        """Settle the debt: utd gradient steps per stored environment step, exactly."""
        if not self.learners.can_update:
            return
        if num_updates := self.progress.take_debt():
            self.learners.train(num_updates, self.progress.residual_scale)
            self.progress.updates += num_updates
