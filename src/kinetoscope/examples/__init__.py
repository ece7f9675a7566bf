"""Training scripts to try the profiler with; they run on their own and do not import Kinetoscope."""

__all__ = ["train_gpt"]
