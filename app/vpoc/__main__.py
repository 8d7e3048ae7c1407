"""`python -m vpoc`."""

from vpoc.cli import main

main()
