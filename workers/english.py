"""English as it is said: figures, signs and abbreviations in words. One rule after the other, each linear in the text.

Signs that every engine reads well by itself stay: apostrophes, hyphens in words, capitals that are spelled.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final, TypeAlias

from workers.characters import ascii_digits
from workers.numbers import cardinal, decimal, digits, ordinal, year

Match: TypeAlias = re.Match[str]

# A number as it is written, at most; what is longer is read digit by digit.
_NUMBER = r"[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,15})?(?![0-9])|[0-9]{1,15}(?:\.[0-9]{1,15})?(?![0-9])"
# Not in the middle of a word, a number or a name with dots.
_ALONE = r"(?<![\w.])(?<![0-9],)"
_TO = r"\s?[-–—]\s?"


# After a figure it is meant for a degree.
_ORDINAL_SIGN = re.compile(r"(?<=[0-9])\s?º")


def spoken(text: str, *, is_british: bool) -> str:
    """The text as it is said; `is_british` has the day before the month, as readers there expect."""
    text = _ORDINAL_SIGN.sub("°", ascii_digits(text))
    for pattern, say in _BRITISH_RULES if is_british else _AMERICAN_RULES:
        text = pattern.sub(say, text)
    return text


# -- addresses ---------------------------------------------------------------------------------------------------------

_HOST_END = (
    "com|org|net|edu|gov|io|dev|ai|app|co|uk|de|fr|es|it|nl|eu|ch|at|se|no|dk|fi|pl|pt|ie|jp|cn|in|au|nz|ca|us|br|mx|info|"
    "me|tv|ly|gg|xyz|tech|online|site|blog|news"
)
_ADDRESS_MARKS = {".": "dot", "-": "dash", "_": "underscore", "+": "plus", "/": "slash", "~": "tilde", ":": "colon"}
_ADDRESS_MARK = re.compile(r"[.\-_+/~:]")


def _address(text: str) -> str:
    named = _ADDRESS_MARK.sub(lambda mark: f" {_ADDRESS_MARKS[mark[0]]} ", text)
    return " ".join(named.split())


def _url(match: Match) -> str:
    """The host and the path; what follows a "?" or "#" means nothing to a listener."""
    address, end = _without_end_marks(match["address"])
    path = re.split(r"[?#]", address, maxsplit=1)[0].rstrip("/")
    return _address(path) + end if path else match[0]


def _without_end_marks(address: str) -> tuple[str, str]:
    bare = address.rstrip(".,;:!?'\")]}>*_")
    return bare, address[len(bare) :]


def _email(match: Match) -> str:
    return f"{_address(match[1])} at {_address(match[2])}"


# -- telephones --------------------------------------------------------------------------------------------------------


def _telephone(match: Match) -> str:
    plus = "plus " if match[0].startswith("+") else ""
    return plus + ", ".join(digits(group) for group in re.findall(r"[0-9]+", match[0]))


# -- dates and times ---------------------------------------------------------------------------------------------------

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTH = "|".join(_MONTHS) + "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
_YEAR = r"(?:1[0-9]|20)[0-9]{2}"


def _month(name: str) -> str:
    return next(month for month in _MONTHS if month.startswith(name[:3]))


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY = "Mon|Tues|Tue|Wed|Thurs|Thur|Thu|Fri|Sat|Sun"


def _weekday(name: str) -> str:
    return next(day for day in _DAYS if day.startswith(name[:3]))


def _date(day: str, month: str, year_digits: str | None, *, is_british: bool) -> str:
    said = f"the {ordinal(int(day))} of {month}" if is_british else f"{month} {ordinal(int(day))}"
    return f"{said}, {_year(year_digits)}" if year_digits else said


def _year(written: str) -> str:
    number = int(written)
    if len(written) == 2:
        return year((2000 if number < 50 else 1900) + number)
    return year(number)


def _numeric_date(match: Match, day: str, month: str, *, is_british: bool) -> str:
    if int(month) > 12:
        day, month = month, day
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return match[0]
    return _date(day, _MONTHS[int(month) - 1], match["year"], is_british=is_british)


def _iso_date(*, is_british: bool) -> Callable[[Match], str]:
    return lambda match: _numeric_date(match, match["day"], match["month"], is_british=is_british)


def _slash_date(*, is_british: bool) -> Callable[[Match], str]:
    def say(match: Match) -> str:
        day, month = (match[1], match[3]) if is_british or match[2] == "." else (match[3], match[1])
        return _numeric_date(match, day, month, is_british=is_british)

    return say


def _day_month(match: Match) -> str:
    if not 1 <= int(match[1]) <= 31:
        return match[0]
    to = f" to the {ordinal(int(match[2]))}" if match[2] else ""
    said = f"the {ordinal(int(match[1]))}{to} of {_month(match[3])}"
    return f"{said}, {year(int(match[4]))}" if match[4] else said


def _month_day(match: Match) -> str:
    if not 1 <= int(match[2]) <= 31:
        return match[0]
    to = f" to {ordinal(int(match[3]))}" if match[3] else ""
    said = f"{_month(match[1])} {ordinal(int(match[2]))}{to}"
    return f"{said}, {year(int(match[4]))}" if match[4] else said


def _month_year(match: Match) -> str:
    return f"{_month(match[1])} {year(int(match[2]))}"


def _time(match: Match) -> str:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    half = _half_of_day(match)
    if minute == 0 and second == 0:
        if half:
            return cardinal(hour) + half
        return f"{cardinal(hour)} o'clock" if 1 <= hour <= 12 else f"{cardinal(hour)} hundred"
    said = f"{cardinal(hour)} {'oh ' if 0 < minute < 10 else ''}{cardinal(minute)}"
    return said + (f" and {_counted(str(second), 'second')}" if second else "") + half


def _hour(match: Match) -> str:
    return cardinal(int(match["hour"])) + _half_of_day(match)


def _duration(match: Match) -> str:
    names = {"h": "hour", "m": "minute", "s": "second"}
    return " ".join(_counted(said, names[part]) for part, said in match.groupdict().items() if said)


def _half_of_day(match: Match) -> str:
    if not match["half"]:
        return ""
    return f" {match['half'].upper()}M" + _kept_stop(match)


def _kept_stop(match: Match) -> str:
    """The full stop of an abbreviation, where it also ends the sentence."""
    if not match[0].endswith("."):
        return ""
    after = match.string[match.end() : match.end() + 3]
    return "." if not after.strip() or re.match(r"[\"'”’)]|\s+[\"'“‘(]?[A-Z]", after) else ""


# -- money -------------------------------------------------------------------------------------------------------------

_MONEY: Final = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "", ""),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "", ""),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"),
    "₺": ("lira", "lira", "", ""),
    "₿": ("bitcoin", "bitcoin", "", ""),
}
_CODES: Final = {"USD": "$", "GBP": "£", "EUR": "€", "JPY": "¥", "INR": "₹"}
_DOLLARS: Final = {
    "US": "US ",
    "AU": "Australian ",
    "A": "Australian ",
    "CA": "Canadian ",
    "C": "Canadian ",
    "NZ": "New Zealand ",
    "HK": "Hong Kong ",
    "S": "Singapore ",
}
_SCALES: Final = {
    "k": "thousand",
    "m": "million",
    "mn": "million",
    "b": "billion",
    "bn": "billion",
    "t": "trillion",
    "tn": "trillion",
}
_SCALE = r"(?:\s?(?P<short>mn|bn|tn|[kKmMbB])(?!\w)|\s(?P<long>thousand|million|billion|trillion)\b)?"


def _money(match: Match) -> str:
    names = match.groupdict()
    sign = match["sign"]
    one, many, cent, cents = _MONEY[_CODES.get(sign, sign)]
    country = _DOLLARS.get(names.get("country") or "", "")
    amount, upper = match["amount"], names.get("upper")
    scale = _SCALES.get((names.get("short") or "").lower()) or names.get("long")
    if upper or scale:
        said = decimal(amount) + (f" to {decimal(upper)}" if upper else "")
        return f"{said}{f' {scale}' if scale else ''} {country}{many}"
    whole, _, rest = amount.replace(",", "").partition(".")
    if len(rest) != 2 or not cent:
        return f"{decimal(amount)} {country}{one if amount == '1' else many}"
    parts = [f"{decimal(whole)} {country}{one if whole == '1' else many}"] if int(whole) or not int(rest) else []
    if int(rest):
        parts.append(f"{cardinal(int(rest))} {cent if rest == '01' else cents}")
    return " and ".join(parts)


# -- quantities --------------------------------------------------------------------------------------------------------

# Written unit -> one, many. Those that are also words need figures close by, or are left out ("in").
_UNITS: Final = {
    "km": ("kilometer", "kilometers"),
    "m": ("meter", "meters"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "µm": ("micrometer", "micrometers"),
    "μm": ("micrometer", "micrometers"),
    "nm": ("nanometer", "nanometers"),
    "km²": ("square kilometer", "square kilometers"),
    "km2": ("square kilometer", "square kilometers"),
    "m²": ("square meter", "square meters"),
    "m2": ("square meter", "square meters"),
    "cm²": ("square centimeter", "square centimeters"),
    "m³": ("cubic meter", "cubic meters"),
    "m3": ("cubic meter", "cubic meters"),
    "ft²": ("square foot", "square feet"),
    "sq ft": ("square foot", "square feet"),
    "ha": ("hectare", "hectares"),
    "mi": ("mile", "miles"),
    "ft": ("foot", "feet"),
    "ft.": ("foot", "feet"),
    "in.": ("inch", "inches"),
    "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"),
    "mg": ("milligram", "milligrams"),
    "µg": ("microgram", "micrograms"),
    "μg": ("microgram", "micrograms"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "lbs.": ("pound", "pounds"),
    "lb.": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "oz.": ("ounce", "ounces"),
    "l": ("liter", "liters"),
    "L": ("liter", "liters"),
    "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"),
    "cl": ("centiliter", "centiliters"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "m/s": ("meter per second", "meters per second"),
    "m/s²": ("meter per second squared", "meters per second squared"),
    "mpg": ("mile per gallon", "miles per gallon"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "° C": ("degree Celsius", "degrees Celsius"),
    "℃": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "° F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "℉": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
    "‰": ("per mille", "per mille"),
    "kB": ("kilobyte", "kilobytes"),
    "KB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "KiB": ("kibibyte", "kibibytes"),
    "MiB": ("mebibyte", "mebibytes"),
    "GiB": ("gibibyte", "gibibytes"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "kB/s": ("kilobyte per second", "kilobytes per second"),
    "KB/s": ("kilobyte per second", "kilobytes per second"),
    "MB/s": ("megabyte per second", "megabytes per second"),
    "GB/s": ("gigabyte per second", "gigabytes per second"),
    "TB/s": ("terabyte per second", "terabytes per second"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"),
    "GW": ("gigawatt", "gigawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "mAh": ("milliamp hour", "milliamp hours"),
    "V": ("volt", "volts"),
    "mA": ("milliamp", "milliamps"),
    "dB": ("decibel", "decibels"),
    "kcal": ("kilocalorie", "kilocalories"),
    "kJ": ("kilojoule", "kilojoules"),
    "px": ("pixel", "pixels"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "bpm": ("beat per minute", "beats per minute"),
    "fps": ("frame per second", "frames per second"),
    "ms": ("millisecond", "milliseconds"),
    "µs": ("microsecond", "microseconds"),
    "ns": ("nanosecond", "nanoseconds"),
    "sec": ("second", "seconds"),
    "secs": ("second", "seconds"),
    "sec.": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"),
    "min.": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "hrs.": ("hour", "hours"),
    "yr": ("year", "years"),
    "yrs": ("year", "years"),
    "bn": ("billion", "billion"),
    "k": ("thousand", "thousand"),
}
_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
# After the unit: no letter or figure that would make it another word, no slash to a unit that is not known.
_UNIT_END = r"(?![\w²³]|/\w)"
_FRACTIONS: Final = {"2": ("half", "halves"), "4": ("quarter", "quarters")}
_DENOMINATORS: Final = frozenset(("2", "3", "4", "5", "6", "7", "8", "9", "10", "12", "16", "20", "32", "64", "100"))


def _counted(number: str, one: str, many: str | None = None) -> str:
    return f"{decimal(number)} {one if number.lstrip('0') == '1' else many or f'{one}s'}"


def _quantity(match: Match) -> str:
    one, many = _UNITS[match["unit"]]
    number, upper = match["number"], match["upper"]
    if match["joint"] == "-":
        many = one
    said = f"{decimal(number)} to {_counted(upper, one, many)}" if upper else _counted(number, one, many)
    return said + _kept_stop(match)


def _feet_and_inches(match: Match) -> str:
    return f"{cardinal(int(match[1]))} foot {cardinal(int(match[2]))}"


def _fraction(match: Match) -> str:
    whole, above, below = match["whole"], match["above"], match["below"]
    if not whole and (above, below) in (("24", "7"), ("9", "11"), ("50", "50"), ("20", "20")):
        return f"{cardinal(int(above))} {cardinal(int(below))}"
    if above == below or (below in ("10", "100") and int(above) <= int(below) and not whole):
        return f"{f'{cardinal(int(whole))} ' if whole else ''}{cardinal(int(above))} out of {cardinal(int(below))}"
    if below not in _DENOMINATORS or not 0 < int(above) < int(below):
        return match[0]
    return _said_fraction(whole, above, below)


def _said_fraction(whole: str | None, above: str, below: str) -> str:
    one, many = _FRACTIONS.get(below) or (ordinal(int(below)), f"{ordinal(int(below))}s")
    if whole and above == "1":
        return f"{decimal(whole)} and a {one}"
    said = f"{cardinal(int(above))} {one if above == '1' else many}"
    return f"{decimal(whole)} and {said}" if whole else said


def _vulgar_fraction(match: Match) -> str:
    above, _, below = unicodedata.normalize("NFKC", match["sign"]).partition("⁄")
    if not below:
        return match[0]
    after = " " if match.string[match.end() : match.end() + 1].isalnum() else ""
    return _said_fraction(match["whole"], above, below) + after


# -- numbers by what is around them ------------------------------------------------------------------------------------


def _version(match: Match) -> str:
    return "version " + _dotted(match[1], "point")


def _named_version(match: Match) -> str:
    return f"{match[1]} {_dotted(match[2], 'point')}"


def _dotted_number(match: Match) -> str:
    groups = match[0].split(".")
    is_address = len(groups) == 4 and all(len(group) <= 3 and int(group) < 256 for group in groups)
    return _dotted(match[0], "dot" if is_address else "point")


def _dotted(text: str, mark: str) -> str:
    return f" {mark} ".join(decimal(group) for group in text.split("."))


def _decade(match: Match) -> str:
    said = year(int(match[1])) if len(match[1]) == 4 else cardinal(int(match[1]))
    return f"{said[:-1]}ies" if said.endswith("y") else f"{said}s"


def _range(match: Match) -> str:
    first, last = match[1], match[2]
    if re.fullmatch(_YEAR, first) and re.fullmatch(rf"{_YEAR}|[0-9]{{2}}", last):
        return f"{year(int(first))} to {year(int(last)) if len(last) == 4 else cardinal(int(last))}"
    if len(first) > 15 or len(last) > 15:
        return match[0]
    return f"{decimal(first)} to {decimal(last)}"


def _power(match: Match) -> str:
    return f"{match[1]} {_to_the(int(match[2]))}"


def _superscript(match: Match) -> str:
    return f"{match[1]} {_to_the(int(unicodedata.normalize('NFKC', match[2]).replace('−', '-')))}"


def _to_the(exponent: int) -> str:
    return {2: "squared", 3: "cubed"}.get(exponent) or f"to the power of {cardinal(exponent)}"


def _scientific(match: Match) -> str:
    return f"{decimal(match[1])} times ten to the power of {cardinal(int(match[2]))}"


def _roman(text: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}[letter] for letter in text]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


_ROMAN = r"(?=[IVXL]+\b)(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_MONARCHS = (
    "Henry|Louis|George|Edward|Charles|William|James|Richard|Philip|Pius|Benedict|Gregory|Innocent|Clement|Leo|"
    "Urban|Paul|Elizabeth|Napoleon|Catherine|Mary|Alexander|Nicholas|Peter|Ivan|Frederick|Ferdinand|"
    "Alfonso|Juan Carlos|Ramesses|Cleopatra|Ptolemy|Mehmed|Otto|Christian|Gustav|Harald|Haakon|Baldwin|Umberto|"
    "Victor Emmanuel|Franz"
)
_NUMBERED = (
    "World War|Chapter|Part|Volume|Act|Scene|Phase|Section|Book|Type|Class|Level|Article|Appendix|Super Bowl|Grade"
)


# "Part I of it" and "Part I is" are the first; "the part I like" is mine.
_SAID_BY_ME = (
    r"(?!(?:of|and|or|to|is|has|had|in|on|at|by|for|from|with|covers|begins|starts|ends|deals|describes|shows|contains|explains)\b)"
    "[a-z]"
)


def _monarch(match: Match) -> str:
    return f"{match[1]} the {ordinal(_roman(match[2]))}"


def _numbered(match: Match) -> str:
    return f"{match[1]} {cardinal(_roman(match[2]))}"


def _plain_number(match: Match) -> str:
    return decimal(match[0])


def _plain_ordinal(match: Match) -> str:
    number = match[1].replace(",", "")
    return ordinal(int(number)) if len(number) <= 15 else match[0]


# -- abbreviations -----------------------------------------------------------------------------------------------------

# Before a name.
_TITLES: Final = {
    "Dr": "Doctor",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Prof": "Professor",
    "St": "Saint",
    "Mt": "Mount",
    "Ft": "Fort",
    "Gen": "General",
    "Col": "Colonel",
    "Capt": "Captain",
    "Cpt": "Captain",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Maj": "Major",
    "Cmdr": "Commander",
    "Adm": "Admiral",
    "Sen": "Senator",
    "Rep": "Representative",
    "Gov": "Governor",
    "Pres": "President",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Fr": "Father",
    "Messrs": "Messrs",
}
# After a name.
_SUFFIXES: Final = {
    "Jr": "Junior",
    "Sr": "Senior",
    "St": "Street",
    "Ave": "Avenue",
    "Blvd": "Boulevard",
    "Rd": "Road",
    "Ln": "Lane",
    "Hwy": "Highway",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Corp": "Corporation",
    "Co": "Company",
    "Bros": "Brothers",
    "Dept": "Department",
    "Univ": "University",
}
# Before a number.
_COUNTERS: Final = {
    "No": "number",
    "no": "number",
    "Nos": "numbers",
    "nos": "numbers",
    "№": "number",
    "Fig": "Figure",
    "fig": "figure",
    "Figs": "Figures",
    "figs": "figures",
    "p": "page",
    "pp": "pages",
    "P": "page",
    "Vol": "Volume",
    "vol": "volume",
    "Ch": "Chapter",
    "ch": "chapter",
    "Sec": "Section",
    "Eq": "Equation",
    "Ex": "Example",
    "Art": "Article",
    "ca": "circa",
    "c": "circa",
    "approx": "approximately",
}
# Anywhere.
_WORDS: Final = {
    "e.g.": "for example",
    "i.e.": "that is",
    "etc.": "et cetera",
    "vs.": "versus",
    "vs": "versus",
    "approx.": "approximately",
    "a.k.a.": "also known as",
    "Ph.D.": "PhD",
    "M.D.": "MD",
    "et al.": "et al",
    "cf.": "compare",
    "w/o": "without",
    "and/or": "and or",
    "est.": "established",
    "incl.": "including",
    "min.": "minimum",
    "max.": "maximum",
    "dept.": "department",
    "tsp": "teaspoons",
    "tsp.": "teaspoons",
    "tbsp": "tablespoons",
    "tbsp.": "tablespoons",
    "govt.": "government",
}


# More always follows these.
_WITHIN: Final = frozenset(("e.g.", "i.e.", "vs.", "cf.", "approx.", "incl.", "est."))


def _one_of(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _title(match: Match) -> str:
    return _TITLES[match[1]]


def _suffix(match: Match) -> str:
    return _SUFFIXES[match[1]] + _kept_stop(match)


def _counter(match: Match) -> str:
    return f"{_COUNTERS[match[1]]} "


def _word(match: Match) -> str:
    return _WORDS[match[1]] + ("" if match[1] in _WITHIN and match.end() < len(match.string) else _kept_stop(match))


# -- signs -------------------------------------------------------------------------------------------------------------

_OPERATORS: Final = {
    "+": "plus",
    "=": "equals",
    "==": "equals",
    "<": "is less than",
    ">": "is greater than",
    "<=": "is at most",
    ">=": "is at least",
    "!=": "does not equal",
    "*": "times",
    "×": "times",
    "÷": "divided by",
    "−": "minus",
    "±": "plus or minus",
    "≈": "is approximately",
    "≠": "does not equal",
    "≤": "is at most",
    "≥": "is at least",
    "→": "to",
    "->": "to",
    "∞": "infinity",
    "&": "and",
}
_SIGN = "|".join(re.escape(sign) for sign in sorted(_OPERATORS, key=len, reverse=True))
_PREFIXES: Final = {
    "±": "plus or minus",
    "≈": "approximately",
    "~": "about",
    "≤": "at most",
    "≥": "at least",
    "√": "the square root of",
    "§": "section",
    ">": "more than",
    "<": "less than",
    "+": "plus",
    "×": "times",
}


def _prefix(match: Match) -> str:
    return f"{_PREFIXES[match[1]]} "


# -- the rules in order ------------------------------------------------------------------------------------------------

_Rule: TypeAlias = tuple[re.Pattern[str], Callable[[Match], str] | str]


def _rule(pattern: str, say: Callable[[Match], str] | str, flags: int = 0) -> _Rule:
    return re.compile(pattern, flags), say


_ADDRESSES: Final = (
    _rule(r"(?<![\w.+-])([\w.+-]{1,64})@((?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24})(?![\w@-])", _email),
    _rule(r"\b(?:https?|ftp)://(?:www\.)?(?P<address>[^\s<>\"“”]+)", _url, re.IGNORECASE),
    _rule(r"(?<![\w@./-])www\.(?P<address>[^\s<>\"“”]+)", _url, re.IGNORECASE),
    _rule(
        rf"(?<![\w@./-])(?P<address>(?:[A-Za-z0-9][A-Za-z0-9-]{{0,62}}\.){{1,5}}(?:{_HOST_END})(?![\w-]|\.\w)(?:/[^\s<>\"“”]*)?)",
        _url,
    ),
)
_TELEPHONES: Final = (
    _rule(
        r"(?<![\w.+-])\+[0-9]{1,3}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{2,5}(?:[ .-][0-9]{2,5}){1,4}(?![\w-])",
        _telephone,
    ),
    _rule(r"(?<![\w.-])(?:1-)?(?:\([0-9]{3}\) ?|[0-9]{3}[-. ])[0-9]{3}[-.][0-9]{4}(?![\w-])", _telephone),
    _rule(r"(?<![\w.-])0[0-9]{2,4}(?: [0-9]{3,4}){1,3}(?![\w-])", _telephone),
    _rule(r"(?<=[Cc]all )[0-9]{3}-[0-9]{4}(?![\w-])|(?<![\w.-])555-[0-9]{4}(?![\w-])", _telephone),
)


def _dates(*, is_british: bool) -> tuple[_Rule, ...]:
    return (
        _rule(
            rf"{_ALONE}(?P<year>{_YEAR})(?P<mark>[-/])(?P<month>0[1-9]|1[0-2])(?P=mark)(?P<day>0[1-9]|[12][0-9]|3[01])"
            r"(?:T(?=[0-9]{2}:)|(?![\w/-]))",
            lambda match: _iso_date(is_british=is_british)(match) + (" " if match[0].endswith("T") else ""),
        ),
        _rule(
            rf"{_ALONE}([0-9]{{1,2}})([/.])([0-9]{{1,2}})\2(?P<year>{_YEAR}|[0-9]{{2}}(?=[^.\w]|$))(?![\w/-]|\.[0-9])",
            _slash_date(is_british=is_british),
        ),
    )


# Codes such as an ISBN; dates are said before.
_CODES_IN_GROUPS = _rule(r"(?<![\w.-])[0-9]{1,7}(?:-[0-9]{1,7}){2,6}(?![\w-])", _telephone)
_WEEKDAYS: Final = (
    _rule(rf"\b({_DAY})[-–]({_DAY})\b", lambda match: f"{_weekday(match[1])} to {_weekday(match[2])}"),
    _rule(rf"\b({_DAY})\.(?=,? (?:[0-9]|{_MONTH}))", lambda match: _weekday(match[1])),
)
_TEXT_DATES: Final = (
    _rule(
        rf"(?:\b[Tt]he )?(?<![\w.,:/$-])([0-9]{{1,2}})(?:st|nd|rd|th)?(?:{_TO}([0-9]{{1,2}})(?:st|nd|rd|th)?)?"
        rf"(?: of)? ({_MONTH})\b\.?(?:,? ({_YEAR})(?![\w-]))?",
        _day_month,
    ),
    _rule(
        rf"\b({_MONTH})\.? ([0-9]{{1,2}})(?:st|nd|rd|th)?(?:{_TO}([0-9]{{1,2}})(?:st|nd|rd|th)?)?(?![\w:%]|[.,/-][0-9])"
        rf"(?:,? ({_YEAR})(?![\w-]))?",
        _month_day,
    ),
    _rule(rf"\b({_MONTH})\.?,? ({_YEAR})(?![\w-]|[.,][0-9])", _month_year),
)
_HALF = r"(?P<half>[AaPp])(?:\.[Mm]\.|[Mm]\b)"
_TIMES: Final = (
    _rule(r"(?<=[0-9]:[0-9]{2})" + _TO + r"(?=[0-9]{1,2}:[0-9]{2})", " to "),
    _rule(r"(?<=[0-9][apAP][mM])" + _TO + r"(?=[0-9])", " to "),
    _rule(r"(?<=[0-9]:[0-9]{2})" + _TO + rf"(?=(?:1[0-2]|0?[1-9])\s?{_HALF.replace('?P<half>', '?:')})", " to "),
    _rule(
        r"(?<![\w:.,$])(?P<hour>[01]?[0-9]|2[0-3]):(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9])(?:\.[0-9]{1,9})?)?"
        rf"(?:\s?{_HALF}|Z\b)?(?![\w:])",
        _time,
    ),
    _rule(rf"(?<![\w:.,$])(?P<hour>1[0-2]|0?[1-9])\s?{_HALF}(?!\w)", _hour),
)
# How long something takes; a single "30m" is a length.
_DURATIONS: Final = (
    _rule(
        r"(?<![\w.])(?P<h>[0-9]{1,3})\s?h(?:rs?)?\s?(?P<m>[0-9]{1,2})\s?m(?:ins?)?(?:\s?(?P<s>[0-9]{1,2})\s?s(?:ecs?)?)?(?![\w/²³])",
        _duration,
    ),
    _rule(r"(?<![\w.])(?P<m>[0-9]{1,3})\s?m(?:ins?)?\s?(?P<s>[0-9]{1,2})\s?s(?:ecs?)?(?![\w/²³])", _duration),
)
_SPACED: Final = (
    _rule(
        r"(?<![\w.,-])(?:[1-9][0-9]?(?: [0-9]{3}){2,4}|[1-9][0-9]{2}(?: 000){2,4})(?![\w,.-]?[0-9])",
        lambda match: match[0].replace(" ", ""),
    ),
    _rule(r"(?<![\w.,-])[1-9][0-9]{0,2}(?:\.000){2,4}(?![\w,.-]?[0-9])", lambda match: match[0].replace(".", "")),
)
# Between numbers before they are words.
_RELATIONS: Final = (
    _rule(r"(?<=[0-9])\s?[-−–]\s?(?=[0-9]{1,15}(?:\.[0-9]{1,15})?\s?=\s?[-−]?[0-9])", " minus "),
    _rule(rf"(?<=[\w)%°²³])\s({_SIGN})\s(?=[\w(.√π∞$£€-])", lambda match: f" {_OPERATORS[match[1]]} "),
    _rule(rf"(?<![\w<>~+=])([{''.join(map(re.escape, _PREFIXES))}])\s?(?=[$£€]?\.?[0-9])", _prefix),
)
_AMOUNT = rf"(?P<amount>{_NUMBER})"
_SIGNS = "[" + "".join(_MONEY) + "]"
_MONIES: Final = (
    _rule(rf"(?<!\w)({_SIGNS})[-−](?=\.?[0-9])", r"minus \1"),
    _rule(rf"(?<!\S)[-−](?={_SIGNS}\.?[0-9])", "minus "),
    _rule(rf"(?<!\w)({_SIGNS})\.(?=[0-9]{{2}}(?![0-9]))", r"\g<1>0."),
    _rule(
        rf"(?:(?<!\w)(?P<country>US|AU|CA|NZ|HK|A|C|S))?(?P<sign>{_SIGNS})\s?{_AMOUNT}"
        rf"(?:{_TO}{_SIGNS}?(?P<upper>{_NUMBER}))?{_SCALE}(?!\w)",
        _money,
    ),
    _rule(rf"\b(?P<sign>{'|'.join(_CODES)})\s?{_AMOUNT}{_SCALE}(?!\w)", _money),
    _rule(rf"{_ALONE}{_AMOUNT}{_SCALE}\s?(?P<sign>{_SIGNS}|(?:{'|'.join(_CODES)})\b)(?![0-9])", _money),
    _rule(r"\b(dollars?|pounds?|euros?|cents|pence|yen)/(?=[A-Za-z])", r"\1 per "),
)
_DOTTED: Final = (
    _rule(r"\b[vV](?:er(?:sion)?\.?)?\s?([0-9]{1,15}(?:\.[0-9]{1,15}){1,8})(?![\w.]*\w)", _version),
    _rule(
        r"\b([Vv]ersion|[Rr]elease|Python|Java|Node|Ubuntu|Debian|Django|macOS|iOS|Android|Windows|Linux)\s"
        r"([0-9]{1,15}(?:\.[0-9]{1,15}){1,8})(?![\w.]*\w)",
        _named_version,
    ),
    _rule(rf"{_ALONE}[0-9]{{1,15}}(?:\.[0-9]{{1,15}}){{2,8}}(?!\w|\.\w)", _dotted_number),
)
_PLUS_OR_MINUS = _rule(r"(?<![\w+])\+/[-−–](?=\s?[0-9.$£€])", "±")
_NEGATIVE = _rule(r"(?<![\w)\]}.,:/%°'\"’-])[-−](?=\.?[0-9])", "minus ")
_SIDE = r"[0-9]{1,5}(?:\.[0-9]{1,5})?"
_QUANTITIES: Final = (
    _rule(r"(?<=[0-9])\s?%[-–—](?=[0-9]{1,15}(?:\.[0-9]{1,15})?\s?%)", " to "),
    _rule(
        rf"(?<![\w.])(?!0x)(?:{_SIDE}(?:[x×]|\sx\s)){{1,3}}(?={_SIDE}\s?(?:{_UNIT}){_UNIT_END})",
        lambda match: "".join(f"{decimal(side)} by " for side in re.findall(r"[0-9.]+", match[0])),
    ),
    _rule(
        rf"(?<![\w.])(?!0x)(?:{_SIDE}(?:[x×]|\sx\s)){{2,3}}{_SIDE}(?![\w.])",
        lambda match: " by ".join(map(decimal, re.findall(r"[0-9.]+", match[0]))),
    ),
    _rule(r"(?<![\w.])([1-9])['’′]\s?(1[01]|[0-9])(?:[\"”″]|'')", _feet_and_inches),
    _rule(
        rf"{_ALONE}(?P<number>{_NUMBER})(?:{_TO}(?P<upper>{_NUMBER}))?(?P<joint>[\s-]?)(?P<unit>{_UNIT}){_UNIT_END}",
        _quantity,
    ),
    _rule(
        r"(?<![\w./])(?:(?P<whole>[0-9]{1,4})[ -])?(?P<above>[0-9]{1,3})[/⁄](?P<below>[0-9]{1,3})(?![\w/]|\.[0-9])",
        _fraction,
    ),
    _rule(r"(?<![\w.])(?:(?P<whole>[0-9]{1,15})\s?)?(?P<sign>[¼-¾⅐-⅞])", _vulgar_fraction),
)
_ABBREVIATIONS: Final = (
    _rule(r"(?<=[A-Za-z])’(?=[A-Za-z])", "'"),
    _rule(rf"(?<![\w.])({_one_of(_COUNTERS)})\.\s?(?=[0-9])", _counter),
    _rule(r"№\s?(?=[0-9])", "number "),
    _rule(
        rf"(?<=[a-z&] )({_one_of(_SUFFIXES)})\b\.(?!\w)(?![ ][A-Z][a-z]+\b(?<!The)(?<!He)(?<!She)(?<!It)(?<!We)(?<!I))",
        _suffix,
    ),
    _rule(r"(?<=[a-z], )(Jr|Sr|Inc|Ltd|Co)\b\.(?!\w)", _suffix),
    _rule(rf"(?<![\w.])({_one_of(_TITLES)})\.(?=\s?[A-Z]| and M)", _title),
    _rule(r"(?<![\w.])(Mr|Mrs|Ms|Dr|Prof)\b(?=\s[A-Z][a-z])", _title),
    _rule(rf"(?<![\w.])({_one_of(_WORDS)})(?![\w.])", _word),
    _rule(r"\bw/(?=\s?[A-Za-z])\s?", "with "),
    _rule(rf"\b((?:{_MONARCHS}))\s(?!I\b)({_ROMAN})\b", _monarch),
    _rule(rf"\b((?:{_NUMBERED}))\s(?!I\s{_SAID_BY_ME})({_ROMAN})\b(?!')", _numbered),
)
_BEFORE_YEARS = (
    "[Ii]n|[Ss]ince|[Ff]rom|[Uu]ntil|[Tt]ill|[Bb]efore|[Aa]fter|[Dd]uring|[Cc]irca|[Yy]ear|[Ss]ummer|[Ww]inter|[Ss]pring|"
    "[Aa]utumn|[Ff]all|[Ee]arly|[Ll]ate|mid|[Cc]opyright|of|by|to|and"
)
_NUMBERS: Final = (
    _rule(rf"{_ALONE}([0-9]{{1,3}}(?:,[0-9]{{3}}){{1,4}}|[0-9]{{1,15}})(?:st|nd|rd|th)\b", _plain_ordinal),
    _rule(r"(?<![\w.,])['’]?((?:1[0-9]|20)[0-9]0|[2-9]0)['’]?s\b", _decade),
    _rule(rf"{_ALONE}({_NUMBER})e([+-]?[0-9]{{1,3}})(?!\w)", _scientific),
    _rule(r"\b([A-Za-z]|[0-9]{1,9})(?:\^|\*\*)(-?[0-9]{1,3})(?![\w.])", _power),
    _rule(r"\b([A-Za-z]|[0-9]{1,9})([⁺⁻]?[⁰¹²³⁴-⁹]{1,3})(?![⁰¹²³⁴-⁹])", _superscript),
    _rule(r"(?<=[A-Za-z0-9)])²", " squared"),
    _rule(r"(?<=[A-Za-z0-9)])³", " cubed"),
    _rule(r"(?<![\w.])([0-9]{1,5})[x×]([0-9]{1,5})(?!\w)", lambda match: f"{decimal(match[1])} by {decimal(match[2])}"),
    _rule(r"(?<![\w.])([0-9]{1,15}(?:\.[0-9]{1,15})?)[x×](?!\w)", lambda match: f"{decimal(match[1])} times"),
    _rule(rf"(?<![\w.,–—-])({_NUMBER})[-–—]({_NUMBER})(?![\w%-]|[.–—][0-9])", _range),
    _rule(rf"{_ALONE}({_NUMBER}) – ({_NUMBER})(?![\w%-]|[.–—][0-9])", _range),
    _rule(
        r"(?<![\w.])([0-9]{1,4}):([0-9]{1,4})(?![\w:]|\.[0-9])",
        lambda match: f"{decimal(match[1])} to {decimal(match[2])}",
    ),
    _rule(
        rf"\b((?:{_BEFORE_YEARS})[\s-](?:of )?)({_YEAR})(?![\w:%-]|[.,][0-9]|\s[a-z]{{3,}}s\b)",
        lambda match: match[1] + year(int(match[2])),
    ),
    _rule(r"(?<![\w.,:/-])((?:19|20)[0-9]{2})(?![\w:%]|[.,:/-][0-9])", lambda match: year(int(match[1]))),
    _rule(rf"(?<=\()({_YEAR})(?=[),–-])", lambda match: year(int(match[1]))),
)
_SIGN_RULES: Final = (
    _rule(r"(?<![\w#])#(?=[0-9])", "number "),
    _rule(r"\b([CFJ])#(?!\w)", r"\1 sharp"),
    _rule(r"(?<![\w#&])#(?=[A-Za-z])", "hashtag "),
    _rule(r"(?<![\w@.])@(?=\w)", "at "),
    _rule(r"(?<=[0-9])([+=×÷*<>≤≥≈≠])(?=[0-9])", lambda match: f" {_OPERATORS[match[1]]} "),
    _rule(r"(?<=[0-9]) - (?=[0-9.]+ (?:=|equals))", " minus "),
    _rule(r"(?<=[0-9])\s?%", " percent"),
    _rule(r"(?<=[0-9])°", " degrees"),
    _rule(r"(?<=\w)[™®]", ""),
)
_PLAIN_NUMBERS: Final = (
    _rule(r"(?<![0-9])([0-9]{1,15}),(?=[0-9])(?![0-9]{3}(?![0-9]))", r"\1, "),
    _rule(r"(?<![\w.])\.[0-9]{1,15}(?!\w)", lambda match: f"point {digits(match[0][1:])}"),
    _rule(rf"(?<!\w)(?<![0-9]\.)(?:{_NUMBER})(?!\w|\.[0-9])", _plain_number),
    _rule(r"(?<!\w)[0-9]{16,}(?!\w)", lambda match: digits(match[0])),
)


def _rules(*, is_british: bool) -> tuple[_Rule, ...]:
    return (
        _PLUS_OR_MINUS,
        *_ADDRESSES,
        *_SPACED,
        *_TELEPHONES,
        *_dates(is_british=is_british),
        _CODES_IN_GROUPS,
        *_WEEKDAYS,
        *_TEXT_DATES,
        *_TIMES,
        *_DURATIONS,
        *_RELATIONS,
        *_MONIES,
        *_DOTTED,
        _NEGATIVE,
        *_QUANTITIES,
        *_ABBREVIATIONS,
        *_NUMBERS,
        *_SIGN_RULES,
        *_PLAIN_NUMBERS,
    )


_AMERICAN_RULES: Final = _rules(is_british=False)
_BRITISH_RULES: Final = _rules(is_british=True)
