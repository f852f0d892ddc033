"""`python -m cumulus`: the program `cumulus`."""

from cumulus.cli import main

if __name__ == "__main__":
    main()
