"""What to record: options and activities, and the interfaces of engines, sources and observers."""
