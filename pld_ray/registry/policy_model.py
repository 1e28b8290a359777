"""The MLflow model of a registered policy: this file is its code, nothing is pickled.

MLflow copies the file into the model and runs it when the model is loaded; pld-ray has to be
installed there.
"""

from __future__ import annotations

import pathlib
import warnings

import mlflow.models
import mlflow.pyfunc

from pld_ray.registry.policy_files import compute_actions, load_policy_module

with warnings.catch_warnings(record=True):  # MLflow wants type hints, which name no tensors

    class PolicyModel(mlflow.pyfunc.PythonModel):
        """Observations with `base_action` -> composed and clipped actions [B, A]."""

        def load_context(self, context):  # type: ignore[no-untyped-def]
            """Read the networks; MLflow calls it once."""
            self.module = load_policy_module(pathlib.Path(context.artifacts["policy"]))

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            """Actions [B, A] of a mapping of columns [B, ...]."""
            return compute_actions(self.module, model_input)


mlflow.models.set_model(PolicyModel())
