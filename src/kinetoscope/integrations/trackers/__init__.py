"""Experiment trackers: W&B, MLflow, TensorBoard. No package of them is imported unless the program has."""

from kinetoscope.integrations.trackers.log import TrainerLog, checked_tracker, log_to_tracker

__all__ = ["TrainerLog", "checked_tracker", "log_to_tracker"]
