"""Where Kinetoscope meets other people's trainers and tools. Nothing here is imported before somebody asks for it."""
