"""A training as it is asked for, by a file and by options."""

import pytest

from gradweave.errors import OptionError
from gradweave.marl.request import read_request


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('algoritm = "iql"', "algoritm: unknown; did you mean algorithm"),
        ("colour = 1", "colour: unknown; known are env, options, algorithm, "),
        ("steps = true", "steps: expected a whole number, got True"),
    ],
)
def test_what_a_file_has_by_mistake_is_named_with_the_file(tmp_path, line: str, says: str):
    file = tmp_path / "training.toml"
    file.write_text(f'env = "switch_riddle"\n{line}\n')
    with pytest.raises(OptionError) as refused:
        read_request(file, {}, ())
    assert str(refused.value).startswith(f"{file}: {says}")
