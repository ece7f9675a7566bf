"""Training scripts to try the profiler on. Each one runs by itself and knows nothing of Kinetoscope."""
