"""``python -m interlock``: the command line."""

from interlock.faces.cli.main import main

if __name__ == "__main__":
    main()
