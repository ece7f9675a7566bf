"""Foreign formats: what is known of each stands in one file, and nothing of it anywhere else."""
