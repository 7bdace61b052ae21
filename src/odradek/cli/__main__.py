"""`python -m odradek.cli`: the `odradek` command, run by this interpreter."""

from odradek.cli import main

main()
