"""The public names of `torch.profiler`, answered by Kinetoscope."""
