"""Events as `torch.profiler` gives them, made from the columns of a trace."""

__all__ = ["arguments", "event_list", "event_numbers", "event_tree", "function_event"]
