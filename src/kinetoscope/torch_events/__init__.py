"""Events as `torch.profiler` gives them, made from the columns of a trace."""
