"""`python -m streamer`."""

from streamer.cli.main import main

if __name__ == "__main__":  # processes of `--trainers` import this module, too
    main()
