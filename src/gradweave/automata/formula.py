"""Formulas of linear temporal logic over finite traces, as automata.

A trace is a sequence of single events. A formula is read event by event: after each event, the
condition on the remaining trace is again a formula (its progression), and these formulas are the
automaton's states. No other program is needed: the packages that translate such formulas call MONA
(ltlf2dfa) or Lydia in a container (logaut), which pip does not install.

The syntax has ``!``, ``&``, ``|``, ``->``, ``X`` (next), ``N`` (next, if there is one), ``G``
(always), ``F`` (at some time), ``U`` (until), ``R`` (release), ``true``, ``false``, events by name,
and parentheses. ``G(c -> N G !a)``: no a after c.

Source: De Giacomo and Vardi 2013 (the logic); Bacchus and Kabanza 1998 (progression).
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import numpy as np

from gradweave.automata.machine import MOST_STATES, Machine
from gradweave.automata.operations import cannot_reach, knowledge
from gradweave.errors import SpecError

_TOKENS = re.compile(r"\s*(->|[!&|()]|[A-Za-z_][\w.]*)")
_UNARY = ("!", "X", "N", "G", "F")
_DEEPEST = 40
"""Maximum nesting of parentheses and operators."""
_LONGEST = 10_000
"""Maximum number of characters in a formula."""
_PARTS_AT_ONCE = 16
"""This many parts of a term count as one more term."""
_MOST_TERMS = 2_000
"""Maximum number of terms in one state's disjunctive form."""
MOST_COMPARED = 5_000_000
"""Maximum number of terms created, and of pairs of terms compared, in translating a formula: both
may grow exponentially with its length."""


@dataclasses.dataclass(frozen=True)
class Formula:
    """A node of a formula: an operator with its operands, or a literal."""

    operator: str
    """``event``, ``not event``, ``true``, ``false``, ``more``, ``end``, ``&``, ``|``, ``X``, ``N``,
    ``U`` or ``R``."""
    parts: tuple["Formula", ...] = ()
    event: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.operator, self.parts, self.event)))

    def __hash__(self) -> int:
        return vars(self)["_hash"]  # cached, since hashing all parts for each set is slow


TRUE, FALSE, MORE, END = (Formula(word) for word in ("true", "false", "more", "end"))
"""`MORE` is true if another event follows, `END` if none does."""
Term = frozenset[Formula]
Terms = frozenset[Term]
"""A disjunction of conjunctions."""


def automaton(
    text: str, events: Sequence[str] = (), name: str = "", most_compared: int | None = None
) -> Machine:
    """The automaton of a formula.

    Its forbidden states are those from which no trace satisfies the formula any longer.

    Args:
        text: the formula.
        events: additional events; no others happen.
        name: name of the result; the formula if not given.
        most_compared: replaces `MOST_COMPARED`, if several formulas share the limit.

    Raises:
        SpecError: the formula cannot be read, holds for no trace, has too many states, or takes
            more than `MOST_COMPARED` terms to translate.

    >>> machine = automaton("G(c -> N G !a)")
    >>> [bool(machine.forbidden[machine.states.index(machine.run(t)[0])]) for t in ("ac", "ca")]
    [False, True]
    """
    formula = _Parser(text).formula()
    named = tuple(dict.fromkeys((*_events(formula), *events)))
    try:
        found, rows = _Progression(most_compared or MOST_COMPARED).states(formula, named)
    except SpecError as error:
        raise SpecError(f"formula {text!r:.80}: {error}; make it simpler") from None
    states = tuple(str(number) for number in range(len(found)))
    moves = np.array(rows, np.int32).reshape(len(states), len(named))
    none = np.zeros(len(states), bool)
    name = name or " ".join(text.split())
    machine = Machine(name, states, named, 0, moves, np.zeros(moves.shape), none, none)
    never = cannot_reach(machine, [n for n, state in enumerate(found) if _ends_well(state)])
    if never[0]:
        raise SpecError(f"formula {text!r:.80}: holds for no trace")
    return knowledge(machine.replace(forbidden=never))


class _Progression:
    """Progressions of formulas, within a limit of terms created and compared."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._known: dict[tuple[Formula, str], Terms] = {}

    def states(
        self, formula: Formula, events: Sequence[str]
    ) -> tuple[list[Terms], list[list[int]]]:
        """The possible remaining formulas, and the index of the formula after each event."""
        found = [self._terms(formula)]
        place, rows = {found[0]: 0}, []
        for state in found:  # grows during the iteration
            row = []
            for event in events:
                after = self._progressed(state, event)
                if after not in place:
                    place[after] = len(place)
                    found.append(after)
                row.append(place[after])
            rows.append(row)
            if len(place) > MOST_STATES:
                raise SpecError(f"needs more than {MOST_STATES:,} states")
        return found, rows

    def _progressed(self, state: Terms, event: str) -> Terms:
        """The condition on the rest of a trace after an event is read."""
        return self._either(
            self._all_of([self._read(part, event) for part in term]) for term in state
        )

    def _read(self, formula: Formula, event: str) -> Terms:
        if (formula, event) not in self._known:
            self._known[formula, event] = self._read_once(formula, event)
        return self._known[formula, event]

    def _read_once(self, formula: Formula, event: str) -> Terms:
        parts = formula.parts
        match formula.operator:
            case "event":
                return _YES if formula.event == event else _NO
            case "not event":
                return _NO if formula.event == event else _YES
            case "true" | "more":
                return _YES
            case "false" | "end":
                return _NO
            case "&":
                return self._all_of([self._read(part, event) for part in parts])
            case "|":
                return self._either(self._read(part, event) for part in parts)
            case "X":
                return self._all_of([self._terms(parts[0]), self._only(MORE)])
            case "N":
                return self._either((self._terms(parts[0]), self._only(END)))
            case "U":
                on = self._all_of([self._read(parts[0], event), self._only(formula)])
                return self._either((self._read(parts[1], event), on))
            case _:  # R
                on = self._either((self._read(parts[0], event), self._only(formula)))
                return self._all_of([self._read(parts[1], event), on])

    def _terms(self, formula: Formula) -> Terms:
        """The disjunctive form of a formula, over parts that are neither ``&`` nor ``|``."""
        if formula.operator == "&":
            return self._all_of([self._terms(part) for part in formula.parts])
        if formula.operator == "|":
            return self._either(self._terms(part) for part in formula.parts)
        return self._only(formula)

    def _only(self, formula: Formula) -> Terms:
        return self._simplified([frozenset([formula])])

    def _all_of(self, parts: Sequence[Terms]) -> Terms:
        whole = _YES
        for part in parts:
            whole = self._simplified(one | other for one in whole for other in part)
        return whole

    def _either(self, parts: Iterable[Terms]) -> Terms:
        return self._simplified(term for part in parts for term in part)

    def _simplified(self, terms: Iterable[Term]) -> Terms:
        """The terms without contradictory ones and without those that another term implies."""
        sound: set[Term] = set()
        for term in terms:
            self._spend(1 + len(term) // _PARTS_AT_ONCE)
            if not _contradicts(term):
                sound.add(term - {TRUE})
        if len(sound) > _MOST_TERMS:
            raise SpecError(f"grows to more than {_MOST_TERMS:,} terms")
        self._spend(len(sound) ** 2)
        return frozenset(term for term in sound if not any(other < term for other in sound))

    def _spend(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise SpecError(f"takes more than {self._most:,} terms and pairs of them to translate")


def _contradicts(term: Term) -> bool:
    if FALSE in term or {MORE, END} <= term:
        return True
    happens = {part.event for part in term if part.operator == "event"}
    denied = {part.event for part in term if part.operator == "not event"}
    return len(happens) > 1 or bool(happens & denied) or bool(happens and END in term)


_YES: Terms = frozenset([frozenset()])
_NO: Terms = frozenset()
_AT_END = frozenset(("true", "end", "not event", "N", "R"))
"""Operators that hold if no event follows."""


def _ends_well(state: Terms) -> bool:
    return any(all(part.operator in _AT_END for part in term) for term in state)


def _events(formula: Formula) -> list[str]:
    """The events that a formula names, in order."""
    named = [formula.event] if formula.event else []
    return list(dict.fromkeys(named + [e for part in formula.parts for e in _events(part)]))


def _negated(formula: Formula) -> Formula:
    operator = _OPPOSITES[formula.operator]
    return Formula(operator, tuple(_negated(part) for part in formula.parts), formula.event)


_PAIRS = (("event", "not event"), ("true", "false"), ("&", "|"), ("X", "N"), ("U", "R"))
_OPPOSITES = {a: b for one, other in _PAIRS for a, b in ((one, other), (other, one))}


class _Parser:
    """Recursive-descent parser: ``->`` binds loosest, then ``|``, ``&``, ``U``/``R``, prefixes."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._tokens = text, 0, []
        if len(text) > _LONGEST:
            self._fail(f"expected at most {_LONGEST:,} characters, got {len(text):,}")
        depth = at = 0
        while text[at:].strip():
            found = _TOKENS.match(text, at)
            if not found:
                self._fail(f"{text[at:].strip()[0]!r} is no operator or event")
            at = found.end()
            self._tokens.append(found[1])
            depth += (found[1] in ("(", *_UNARY, "->", "U", "R")) - (found[1] == ")")
            if depth > _DEEPEST:
                self._fail(f"nested more than {_DEEPEST} deep")

    def formula(self) -> Formula:
        """All of the text."""
        whole = self._implication()
        if self._at < len(self._tokens):
            self._fail(f"expected an operator, got {self._tokens[self._at]!r}")
        return whole

    def _fail(self, why: str) -> NoReturn:
        raise SpecError(f"formula {self._text!r:.80}: {why}")

    def _take(self, *wanted: str) -> str | None:
        if self._at < len(self._tokens) and self._tokens[self._at] in wanted:
            self._at += 1
            return self._tokens[self._at - 1]
        return None

    def _implication(self) -> Formula:
        left = self._row("|", lambda: self._row("&", self._until))
        if self._take("->"):
            return Formula("|", (_negated(left), self._implication()))
        return left

    def _row(self, operator: str, part: Callable[[], Formula]) -> Formula:
        parts = [part()]
        while self._take(operator):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Formula(operator, tuple(parts))

    def _until(self) -> Formula:
        left = self._prefixed()
        operator = self._take("U", "R")
        return Formula(operator, (left, self._until())) if operator else left

    def _prefixed(self) -> Formula:
        operator = self._take(*_UNARY)
        if operator is None:
            return self._atom()
        inner = self._prefixed()
        match operator:
            case "!":
                return _negated(inner)
            case "G":
                return Formula("R", (FALSE, inner))
            case "F":
                return Formula("U", (TRUE, inner))
            case _:
                return Formula(operator, (inner,))

    def _atom(self) -> Formula:
        if self._take("("):
            inner = self._implication()
            if not self._take(")"):
                self._fail("a parenthesis is not closed")
            return inner
        if self._at >= len(self._tokens):
            self._fail("ends where an event or a parenthesis is expected")
        token = self._tokens[self._at]
        if token in ("true", "false"):
            self._at += 1
            return TRUE if token == "true" else FALSE
        if not re.fullmatch(r"[A-Za-z_][\w.]*", token) or token in (*_UNARY, "U", "R"):
            self._fail(f"expected an event, got {token!r}")
        self._at += 1
        return Formula("event", event=token)
