"""The evidence for figures in README.md and docs/, and the check that both agree.

    python -m benchmarks.claims

A comment at the end of a paragraph, of an item of a list or of a row of a table says where figures
in it come from, one per line:

    The mean is 3.7%, over 100 servers. <!--
    3.7% = 100 * mean(unequal_networks_gap:rows.gap) -->

Left is a figure as printed, right a query: here rows of
`benchmarks/results/unequal_networks_gap.json` (see `query.py`). Both must agree to the digits
printed. `>` instead of `=` says that the figure is an upper limit ("under 3 s"), `<` a lower limit,
`~` that the text says "about" or similar, within a tenth. Other lines:

    test: tests/.../test_....py::test_...   asserts it; the check is that there is such a test
    set: ...           a definition, an example or a setting
    published: ...     the source of a figure that is not ours
    unrecorded: ...    a trial of which no record was kept; the section says "not recorded"

README.md and docs/index.md may not state a figure without such a line.
"""
