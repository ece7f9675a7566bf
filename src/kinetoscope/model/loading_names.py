"""The words by which the loading of data is told apart in traces, where it is recorded and where it is read."""

from __future__ import annotations

# torch marks each call for the next batch of a `DataLoader` with a range whose name begins so.
NEXT_BATCH = "enumerate(DataLoader)#"
# Making one batch: asking the dataset for the samples, and putting them together, which is inside.
FETCH = "DataLoader.fetch"
COLLATE = "DataLoader.collate"
# Copying a batch to memory that devices can read directly.
PIN = "DataLoader.pin"
# What is known of loaders and their workers, in `info`.
INFO = "data_loading"
