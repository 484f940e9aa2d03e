"""`python -m tlp`."""

from tlp.cli.main import main

if __name__ == "__main__":
    main()
