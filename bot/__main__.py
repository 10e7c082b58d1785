"""Start the command line: `python -m bot` is `troupe`."""

from bot.cli.app import main

if __name__ == "__main__":
    main()
