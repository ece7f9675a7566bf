"""What is asked of a recording: the options and activities, and the interfaces of those who record."""
