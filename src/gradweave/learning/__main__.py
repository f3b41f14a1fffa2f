"""``python -m gradweave.learning``: train the weights of the scheduler "learned"."""

from gradweave.cli.learning import learn
from gradweave.cli.main import main

if __name__ == "__main__":
    main(command=learn, name="python -m gradweave.learning")
