"""`python -m jobq` is `jobq`."""

from jobq.cli import main

main()
