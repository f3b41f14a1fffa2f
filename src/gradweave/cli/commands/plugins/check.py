"""``gradweave plugins check``: whether what others wrote does what all of its kind promise."""

from collections import Counter
from collections.abc import Sequence

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress
from gradweave.cli.groups import command
from gradweave.common.wording import counted
from gradweave.conformance import Finding, conform
from gradweave.errors import ANSWER_IS_NO, SUCCESS


@command(examples=["my_package:MyScheduler"])
@click.argument("target", metavar="TARGET")
def check(target: str) -> Answer:
    """Test a plugin against everything that its kind promises.

    A plugin is a scheduler, a family of networks, an environment or a placement strategy.

    TARGET is module:object, which is imported, or the name of what an installed package brings;
    after it a colon and parameters may stand, as in my.nets:snake:rows=3,columns=4. It exits with 1
    if a promise is broken, and says so in one line for each.
    """
    with Progress(f"importing {target}") as progress:
        kind, found = conform(target)
        findings = []
        for finding in found:
            progress(f"{finding.check}: {finding.case}")
            findings.append(finding)
    broken = [finding for finding in findings if finding.fault]
    answer = {
        "target": target,
        "kind": kind,
        "conforms": not broken,
        "checks": dict(Counter(finding.check for finding in findings)),
        "broken": [{"check": one.check, "case": one.case, "fault": one.fault} for one in broken],
    }
    status = ANSWER_IS_NO if broken else SUCCESS
    return Answer(answer, _lines(kind, findings, broken), status=status)


def _lines(kind: str, findings: Sequence[Finding], broken: Sequence[Finding]) -> list[str]:
    lines = [f"broken: {one.check}: {one.case}: {one.fault}" for one in broken]
    spoilt = {one.check for one in broken}
    tried = Counter(one.check for one in findings if one.check not in spoilt)
    lines += [f"kept: {check}: {counted(cases, 'case')}" for check, cases in tried.items()]
    verdict = f"{counted(len(broken), 'broken promise')}" if broken else "conforms"
    return [*lines, f"{kind}: {verdict}, {counted(len(findings), 'check')}"]
