"""The public names of `torch.profiler`, implemented by Kinetoscope."""
