"""Our own files, recordings, and tables as Parquet and Arrow files; bytes from any place."""
