"""``python -m gradweave.learning``: the command ``gradweave learn``."""

from gradweave.cli.commands.learn import learn
from gradweave.cli.main import main

if __name__ == "__main__":
    main(command=learn, name="python -m gradweave.learning")
