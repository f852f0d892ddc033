"""`python -m sector`: the program `sector`."""

from sector.cli.main import main

if __name__ == "__main__":
    main()
