"""What a run leaves behind: MLflow, metrics, evaluation results, curves, log and progress display.

MLflow and matplotlib are imported when they are first used; they take seconds.
"""

from pld_ray.tracking.logfile import close_logging, setup_logging
from pld_ray.tracking.mlflow_record import read_record
from pld_ray.tracking.mlflow_run import MissingRunError, MlflowRun
from pld_ray.tracking.plots import plot_learning_curve
from pld_ray.tracking.progress import TrainProgress

__all__ = [
    "MissingRunError",
    "MlflowRun",
    "TrainProgress",
    "close_logging",
    "plot_learning_curve",
    "read_record",
    "setup_logging",
]
