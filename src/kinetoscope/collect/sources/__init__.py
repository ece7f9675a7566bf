"""Sources: additional recorders, such as data loading, counters, clocks and optimizers."""
