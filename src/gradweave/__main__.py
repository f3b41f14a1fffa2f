"""``python -m gradweave``."""

from gradweave.cli.main import main

if __name__ == "__main__":
    main()
