"""`python -m odradek.cli`: the `odradek` command of this very interpreter."""

from odradek.cli import main

main()
