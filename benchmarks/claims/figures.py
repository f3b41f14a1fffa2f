"""Which figures a sentence states, and whether a number agrees with one as printed."""

import re

_WORDS = {
    word: number
    for number, word in enumerate(
        "none one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty".split(),
    )
} | {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "hundred": 100, "thousand": 1000}
_PARTS = {
    "half": 1 / 2,
    "third": 1 / 3,
    "thirds": 1 / 3,
    "quarter": 1 / 4,
    "quarters": 1 / 4,
    "fifth": 1 / 5,
    "fifths": 1 / 5,
    "sixth": 1 / 6,
    "sixteenth": 1 / 16,
    "seventh": 1 / 7,
    "eighth": 1 / 8,
    "eighths": 1 / 8,
    "tenth": 1 / 10,
    "tenths": 1 / 10,
    "twentieth": 1 / 20,
    "fiftieth": 1 / 50,
    "hundredth": 1 / 100,
    "thousandth": 1 / 1000,
}
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?|\.\d+(?:e-?\d+)?"
_WORD = "|".join(_WORDS)
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_POWER = f"[{_SUPERSCRIPTS}]"
_UNIT = (
    r" ?(?:%|×(?! ?\d))|[ -](?:percent|points?|times|s|ms|µs|ns|min|h|seconds?|milliseconds?"
    r"|minutes?|hours?|days?|rounds?|steps?|updates?|iterations?|episodes?|samples?|decisions?"
    r"|bytes?|[kKMGT]i?B|bits?|parameters"
    r"|k?bit/s|[MG]bit/s|[kMG]i?B/s|a second)(?![\w/])"
)
_VERB = r" (?:are|were|meet|meets|reach|reaches|end|ends|miss|misses|diverged?)\b"
_FIGURE = re.compile(
    rf"(?<![\w.,/:=−^-])(?<![+−·÷=⌉] )(?:{_DIGITS})(?:(?:{_UNIT})|{_VERB})"
    rf"|(?<![\w.,:/=−^])(?:{_DIGITS}) (?:to|and|or) (?:{_DIGITS})(?:{_UNIT})"
    rf"|(?<![\w.,:/=−^])(?<!best of )(?:{_DIGITS})(?: \w+)? of (?:the )?(?:{_DIGITS})\b(?! servers)"
    r"|(?<=\| )\d[\d,]+(?= \|)"  # all that a cell of a table has
    rf"|(?<![\w.,:/=−^])(?:{_DIGITS}) (?:million|billion|constants)\b"
    rf"|\b(?:[Uu]p to|[Aa]ll|[Nn]one of(?: the)?) (?:{_DIGITS})(?! [–×])\b"
    rf"|(?<![\w.,/:=−^-])(?:\d+\.\d+|\.\d+)(?![\w.]*[(/])"
    rf"|(?<=[ (])−(?:\d+\.\d+)(?![\w.]*[(/])"
    rf"|\b10{_POWER}+"
    rf"|\b(?:{_WORD})(?: and a half)?[ -]"
    r"(?:times|seconds?|milliseconds?|minutes?|hours?|percent|points?|bytes?)\b"
    rf"|\b(?!one of )(?:{_WORD})(?: seeds| networks| cases)? of (?:the )?(?:{_WORD}|{_DIGITS})\b"
    rf"|\bon all (?:{_WORD})\b"
    r"|\b(?:about|within|under|than|costs) an? (?:percent|millisecond|second|minute|hour)\b"
    rf"|\b[Tt]wice (?:as|the)\b"
    rf"|\b(?:an?|{_WORD}) (?:{'|'.join(_PARTS)})\b"
    r"|\b[Hh]alf (?:of|the|as|a)\b",
    re.IGNORECASE,
)
_NOT_FIGURES = re.compile(
    r"`[^`]*`"  # code
    r"|\]\([^)]*\)"  # where links lead
    r"|<[^>]*>"  # marks of HTML
    r"|\$[^$]*\$"
    r"|\b(?:[Ss]ections?|Table|Figure|Python|JAX|License|Open MPI|version|PyTorch|torch"
    r"|ROCm|RCCL|NCCL)"
    r" (?:\d[\d.]*)(?:(?: to | and |, )\d[\d.]*)*"
    r"|\b\d+\.\d+\.\d+\b"
    r"|\barXiv[: ]\d{4}\.\d+|\b\d{4}\.\d{5}\b|\b(?:19|20)\d\d\b(?:-\d\d)*"
)
_ABOUT = re.compile(
    r"\b(?:about|some|nearly|almost|around|roughly|hardly|close|next to|as good as|as many)\b", re.I
)


def figures_of(sentence: str) -> list[str]:
    """The figures that a sentence states: shares, times, sizes, counts of outcomes and the like.

    Code, addresses, versions, years and numbers of sections are none, nor are numbers without a
    unit, such as how many servers a network has.
    """
    bare = _NOT_FIGURES.sub(lambda match: "`" + "x" * (len(match[0]) - 2) + "`", sentence)
    return [match[0] for match in _FIGURE.finditer(bare)]


def numbers_in(text: str) -> list[str]:
    """Its numbers, in digits or words, as written."""
    return re.findall(rf"10{_POWER}+|{_DIGITS}", text)


def value(figure: str) -> tuple[float, float]:
    """A printed figure's number, and by how much a value may differ that is printed so."""
    if match := re.search(rf"10({_POWER}+)", figure):
        exponent = int(match[1].translate(str.maketrans(_SUPERSCRIPTS, "0123456789-")))
        return 10.0**exponent, 0.5 * 10.0**exponent
    if match := re.search(rf"(?:{_DIGITS})", figure):
        digits = match[0].replace(",", "")
        mantissa, _, exponent = digits.partition("e")
        decimals = len(mantissa.partition(".")[2])
        minus = -1 if figure.lstrip().startswith("−") else 1
        return minus * float(digits), 0.5 * 10.0 ** (int(exponent or 0) - decimals)
    words = re.findall(r"[a-z]+", figure.lower())
    whole = next((_WORDS[word] for word in words if word in _WORDS), None)
    part = next((_PARTS[word] for word in words if word in _PARTS), None)
    if "and a half" in figure:
        return (whole or 0) + 0.5, 0.25
    if part is not None:
        return (whole or 1) * part, 0.15 * (whole or 1) * part
    if "twice" in words:
        return 2.0, 0.25
    if whole is not None:
        return float(whole), 0.5
    if re.search(r"\ban? (?:percent|millisecond|second|minute|hour)\b", figure):
        return 1.0, 0.5
    raise ValueError(f"no number in {figure!r}")


def agrees(figure: str, sign: str, number: float) -> bool:
    """Whether a number is what a sentence prints: `=` to its digits, `<`, `>` or `~` it."""
    printed, within = value(figure)
    if sign == "=":
        return abs(number - printed) <= within * (1 + 1e-9)
    if sign == "~":
        return abs(number - printed) <= max(0.1 * abs(printed), within)
    return printed <= number if sign == "<" else printed >= number


def says_about(sentence: str) -> bool:
    """Whether the sentence itself says that a figure is a rough one."""
    return bool(_ABOUT.search(sentence))
