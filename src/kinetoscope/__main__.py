"""`python -m kinetoscope` is the command `kinetoscope`."""

from kinetoscope.cli import main

main(prog_name="kinetoscope")
