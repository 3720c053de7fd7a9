"""`python -m budgetrec` is the command line."""

from budgetrec.cli import main

main()
