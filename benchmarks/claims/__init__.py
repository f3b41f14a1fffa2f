"""What each quantitative sentence of README.md and docs/ rests on, and the check that it does.

python -m benchmarks.claims              check, and say what is wrong, with status 1
python -m benchmarks.claims list PAGE    entries for the sentences of a page that have none

`pages/` has one file a page, with one entry a sentence, whole as the page has it:

    [[claim]]
    text = "The mean is 3.7%, over 100 servers."
    figures = ["3.7% = 100 * mean(unequal_networks_gap:rows.gap)"]
    set = "the sizes of the generator"

`figures` pairs a figure, as printed, with what it is computed from, here rows of
`benchmarks/results/unequal_networks_gap.json` (see `query.py`); the two must agree to the digits
printed. `>` in place of `=` says that the figure is an upper limit (“under 3 s”), `<` a lower one,
`~` that the sentence says “about” or the like, within a tenth. Figures that no query covers need
one of these, which covers the rest of its sentence:

    test = "tests/…/test_….py::test_…"   that asserts it, or several
    set = "…"          a definition, an example or a setting: chosen, not measured
    published = "…"    the source, which is not ours
    unrecorded = "…"   a trial of which no record was kept: its section says “not recorded”
"""
