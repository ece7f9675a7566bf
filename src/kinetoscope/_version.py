"""The version of Kinetoscope, in a separate module so that it can be imported without anything else."""

__version__ = "0.1.0"
