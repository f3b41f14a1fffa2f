"""What `gradweave learn` reads: the shipped file, and what is wrong with others."""

import dataclasses

import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

from gradweave.environment.problem import Instance
from gradweave.errors import OptionError
from gradweave.learning.config import Config, Exercise, Group, parse_config, read_config
from gradweave.topology import from_spec
from tests.learning.tiny import CONFIG, TEXT

HELD_OUT = (
    *("bcube:n=5,k=1", "dcell:n=5,k=1", "dcell:n=6,k=1"),
    *("jellyfish:reference=J15", "jellyfish:reference=J20"),
)
UNSEEN = ("torus", "mesh", "hypercube", "dragonfly", "random")


def test_the_shipped_training_holds_out_what_it_is_judged_by():
    config = read_config(None)
    exercises = [exercise for group in config.groups for exercise in group.exercises]
    assert len(exercises) > 20
    networks = [from_spec(exercise.topology) for exercise in exercises]
    held_out = [from_spec(spec) for spec in HELD_OUT]
    for network in networks:
        family = network.name.partition(":")[0]
        assert family not in UNSEEN and family not in {f"tpu_{unseen}" for unseen in UNSEEN}
        assert network.name not in {other.name for other in held_out}
        if family == "jellyfish":  # no graph of the sizes either
            sizes = {(len(other.switches), other.num_servers) for other in held_out}
            assert (len(network.switches), network.num_servers) not in sizes
    for exercise, network in zip(exercises, networks, strict=True):
        assert Instance(network, exercise.collective, exercise.trees).bound > 0


def test_the_shipped_training_is_for_rounds_alone_and_trains_both():
    config = read_config(None)
    assert config.rewards == type(config.rewards).ours()
    assert config.tree_updates > 0 and config.workload_updates > 0
    assert all(group.episodes % 2 == 0 for group in config.groups)


def test_it_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text(TEXT)
    assert read_config(path) == CONFIG
    (group,) = CONFIG.groups
    assert group.exercises[0] == Exercise("bcube:n=2,k=1", "all_gather", "grown")
    assert group.exercises[2] == Exercise("star:n=4", "reduce_scatter", "fixed")
    assert (CONFIG.seeds, CONFIG.updates, CONFIG.tree.learning_rate) == (2, 40, 0.02)


def test_agents_take_turns():
    config = dataclasses.replace(CONFIG, tree_updates=2, workload_updates=1, iterations=2)
    agents = [config.agent(update) for update in range(config.updates)]
    assert agents == ["tree", "tree", "workload"] * 2
    imitates = dataclasses.replace(config, imitation_updates=2)
    assert [imitates.agent(update) for update in range(imitates.updates)] == [
        "workload"
    ] * 2 + agents
    assert [imitates.imitates(update) for update in range(4)] == [True, True, False, False]
    alone = dataclasses.replace(CONFIG, tree_updates=0)
    assert {alone.agent(update) for update in range(alone.updates)} == {"workload"}


def test_every_field_tells_trainings_apart():
    group = CONFIG.groups[0]
    changed = [
        dataclasses.replace(CONFIG, groups=(dataclasses.replace(group, episodes=16),)),
        dataclasses.replace(CONFIG, tree=dataclasses.replace(CONFIG.tree, clip_ratio=0.3)),
        dataclasses.replace(CONFIG, workload=dataclasses.replace(CONFIG.workload, epochs=3)),
        dataclasses.replace(CONFIG, rewards=dataclasses.replace(CONFIG.rewards, sent=1.0)),
        *(
            dataclasses.replace(CONFIG, **{name: value})
            for name, value in {
                **{"seed": 4, "seeds": 3, "iterations": 9, "tree_updates": 1},
                **{"workload_updates": 1, "tree_bias": 1.0, "draws": 4, "single_policy": True},
            }.items()
        ),
    ]
    digests = {config.digest() for config in (CONFIG, *changed)}
    assert len(digests) == 1 + len(changed)
    assert parse_config(TEXT.encode(), "again").digest() == CONFIG.digest()


def with_line(line: str) -> str:
    """The tiny training with one more line at the top, in the place of one that says the same."""
    name = line.partition(" =")[0]
    kept = [row for row in TEXT.splitlines() if not row.startswith(f"{name} =")]
    return "\n".join([line, *kept])


BAD = {
    "not TOML": ("seed 3", "not TOML: "),
    "JSON": ('{"seed": 3}', "not TOML: "),
    "field given twice": ("seed = 1\n" + TEXT, "not TOML: "),
    "empty": ("", "missing required field"),
    "no groups": (TEXT.partition("[[groups]]")[0], "missing required field `groups`"),
    "empty groups": ("groups = []\n" + TEXT.partition("[[groups]]")[0], "groups: expected at"),
    "missing field": (TEXT.replace("draws = 3", "").replace("iterations = 8", ""), "`iterations`"),
    "unknown field": (with_line("tempo = 3"), "tempo: unknown; known are groups, iterations,"),
    "unknown field of an agent": (
        TEXT.replace("[tree]", "[tree]\nrate = 1"),
        "tree.rate: unknown; did you mean learning_rate[?] known are epochs,",
    ),
    "unknown field of a group": (
        TEXT.replace("at_once = 2", "at_once = 2\nsize = 3"),
        "groups.size: unknown; known are exercises,",
    ),
    "unknown field of an exercise": (
        TEXT.replace('"ring:n=5"', '"ring:n=5", routes = 3'),
        "groups.exercises.routes: unknown; known are topology, collective, trees",
    ),
    "unknown reward": (TEXT.replace("sent = 0.0", "sent = 0.0\nluck = 1.0"), "rewards.luck: unkn"),
    "wrong type": (with_line('iterations = "many"'), r"Expected `int`, got `str` - at `\$.iterat"),
    "fraction": (with_line("iterations = 1.5"), "Expected `int`, got `float`"),
    "unknown collective": (TEXT.replace('"reduce_scatter"', '"broadcast"'), "'broadcast'"),
    "unknown trees": (TEXT.replace('"fixed"', '"tall"'), "'tall'"),
    "no iterations": (with_line("iterations = 0"), "iterations: expected at least 1, got 0"),
    "no seeds": (with_line("seeds = 0"), "seeds: expected at least 1, got 0"),
    "no draws": (with_line("draws = -1"), "draws: expected at least 1, got -1"),
    "negative seed": (with_line("seed = -1"), "seed: expected 0 to 2147483647, got -1"),
    "huge seed": (with_line(f"seed = {2**31}"), "seed: expected 0 to"),
    "negative updates": (
        with_line("tree_updates = -2"),
        "tree_updates: expected a finite number of at",
    ),
    "no updates": (
        TEXT.replace("tree_updates = 2", "tree_updates = 0").replace(
            "workload_updates = 3", "workload_updates = 0"
        ),
        "both 0: nothing would learn",
    ),
    "no number": (with_line("tree_bias = nan"), "tree_bias: expected a finite number, got nan"),
    "endless minutes": (with_line("checkpoint_minutes = inf"), "checkpoint_minutes: expected"),
    "endless reward": (TEXT.replace("sent = 0.0", "sent = inf"), "rewards: sent: expected a fin"),
    "no learning rate": (
        TEXT.replace("learning_rate = 2e-2", "learning_rate = 0.0"),
        r"learning_rate: expected a number above 0, got 0.0 - at `\$.tree`",
    ),
    "more at once than there are": (
        TEXT.replace("at_once = 2", "at_once = 4"),
        r"at_once: expected 1 to 3, the number of the group's exercises, got 4 - at `\$.groups",
    ),
    "none at once": (TEXT.replace("at_once = 2", "at_once = 0"), "at_once: expected 1 to 3"),
    "no episodes": (TEXT.replace("episodes = 8", "episodes = 0"), "episodes: expected at least 1"),
    "no share": (
        TEXT.replace("at_once = 2", "at_once = 2\nshare = 0.0"),
        "share: expected a number above 0, got 0.0",
    ),
    "endless share": (TEXT.replace("at_once = 2", "at_once = 2\nshare = inf"), "share: expected"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, reason):
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=reason) as raised:
        read_config(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(OptionError, match=f"{path}: cannot be read: "):
            read_config(path)
    path = tmp_path / "train.toml"
    path.write_bytes(b"seed = 3 # \xff\xfe")
    with pytest.raises(OptionError, match="not TOML"):
        read_config(path)


def test_it_is_checked_in_code_too():
    with pytest.raises(OptionError, match="at_once"):
        Group((Exercise("ring:n=5"),), at_once=2, episodes=4)
    with pytest.raises(OptionError, match="groups"):
        Config((), 1, 1, 1)
