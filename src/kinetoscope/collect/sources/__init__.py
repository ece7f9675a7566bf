"""Sources: what records beside the engine, such as data loading, counters, clocks and optimizers."""
