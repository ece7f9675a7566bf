"""`.ktrace` files, recordings, Parquet and Arrow files, and the sources of their bytes."""
