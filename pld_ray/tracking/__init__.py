"""What a run leaves behind: MLflow, metrics, evaluation results, curves, log and progress display.

MLflow and matplotlib are imported when they are first used; they take seconds.
"""
