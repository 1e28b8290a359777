"""The MLflow model of a registered policy: this file is its code, nothing is pickled.

MLflow copies the file into the model and runs it when the model is loaded; pld-ray has to be
installed there.
"""

from __future__ import annotations

import pathlib
import warnings

import mlflow.models
import mlflow.pyfunc

from pld_ray.plugin.acting import load_residual

with warnings.catch_warnings(record=True):  # MLflow wants type hints, which name no tensors

    class PolicyModel(mlflow.pyfunc.PythonModel):
        """The environment's observations -> actions [N, A] of base + residual, step by step."""

        def load_context(self, context):  # type: ignore[no-untyped-def]
            """Read base policy and networks; MLflow calls it once."""
            self.policy = load_residual(pathlib.Path(context.artifacts["policy"]))

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            """`ActingPolicy.predict`, with `episode_start` and `tasks` in `params`."""
            given = {name: value for name, value in (params or {}).items() if len(value)}
            return self.policy.predict(model_input, **given)


mlflow.models.set_model(PolicyModel())
