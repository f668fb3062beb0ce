"""The dashboard's colours: each fact has one, and neighbours differ also for who does not tell red from green."""

from __future__ import annotations

import itertools
import math
import re
from importlib.resources import files

from cells import each

FOLDER = files("oakum_service") / "dashboard" / "static"
THEMES = ("light", "dark")
TONES = [f"tone-{number}" for number in range(8)]
STALLS = ["stall-grow", "stall-shrink", "stall-loss", "stall-cold"]
USES = ["foreground", "training", "idle"]
EYES = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red cones": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green cones": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
"""What an eye sees of linear RGB (Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, severity 1)."""
APART = 14.0
"""Least distance in CIELAB of two colours that stand side by side; about 2 is just visible."""
Colour = tuple[float, ...]


def sheet(name: str) -> str:
    return re.sub(r"/\*.*?\*/", "", (FOLDER / name).read_text(), flags=re.S)


def variables(name: str, theme: str) -> dict[str, str]:
    """The custom properties that `:root` has under the theme, by name."""
    plain, dark = re.split(r"@media \(prefers-color-scheme: dark\) \{", sheet(name), maxsplit=1)
    blocks = re.findall(r":root \{(.*?)\}", plain, re.S) + (
        re.findall(r":root \{(.*?)\}", dark, re.S) if theme == "dark" else []
    )
    return dict(re.findall(r"--([\w-]+): ([^;]+);", "".join(blocks)))


def linear(colour: str) -> Colour:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def mixed(colour: str, ground: str, share: float) -> str:
    one, other = (re.findall("..", each[1:]) for each in (colour, ground))
    parts = ((int(a, 16), int(b, 16)) for a, b in zip(one, other, strict=True))
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in parts)


def lab(rgb: Colour) -> Colour:
    white = (0.9505, 1.0, 1.089)
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = (sum(a * b for a, b in zip(row, rgb, strict=True)) / w for row, w in zip(rows, white, strict=True))
    x, y, z = (math.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, eyes: str) -> Colour:
    return tuple(
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear(colour), strict=True)))) for row in EYES[eyes]
    )


def distance(one: str, other: str) -> float:
    """The distance of two colours for those eyes that tell them apart worst."""
    return min(math.dist(lab(seen(one, eyes)), lab(seen(other, eyes))) for eyes in EYES)


def contrast(one: str, other: str) -> float:
    """The ratio of luminances, as WCAG 2 defines it."""
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other)))
    return (high + 0.05) / (low + 0.05)


def neighbours(theme: str) -> list[tuple[str, str, str, str]]:
    """(name, colour, name, colour) of all that may stand side by side: bars of nodes and where none is, areas of
    the strip and its rest, parts of a trainer's time, outlines of what is to come. What warms up is outlined in
    its tone, which tells it from others."""
    facts, page = variables("colours.css", theme), variables("style.css", theme)
    share = float(facts["warming-share"].rstrip("%")) / 100
    facts |= {f"warming-{tone}": mixed(facts[tone], page["surface"], share) for tone in TONES}
    pairs = [pair for group in (TONES, USES, STALLS) for pair in itertools.combinations(group, 2)]
    pairs += itertools.product(TONES, ["foreground", "idle", *STALLS])
    pairs += [(f"warming-{tone}", tone) for tone in TONES]
    pairs.append(("announced", "reserved"))
    facts |= {"no bar": page["surface"], "the strip's rest": page["ground"]}
    pairs += itertools.product(USES, ["no bar", "the strip's rest"])
    return [(one, facts[one], other, facts[other]) for one, other in pairs]


@each("theme", THEMES)
def test_neighbours_can_be_told_apart_by_all_eyes(theme: str) -> None:
    close = {(a, b): round(d, 1) for a, one, b, other in neighbours(theme) if (d := distance(one, other)) < APART}
    assert not close


@each("theme", THEMES)
def test_names_can_be_read_on_bars_and_bars_be_seen_on_the_page(theme: str) -> None:
    facts, page = variables("colours.css", theme), variables("style.css", theme)
    read = {tone: contrast(facts[tone], facts["tone-text"]) for tone in TONES}
    read["foreground"] = contrast(facts["foreground"], facts["foreground-text"])
    assert not {name: ratio for name, ratio in read.items() if ratio < 4.5}
    on_page = {fact: contrast(facts[fact], page["surface"]) for fact in [*TONES, "announced", "reserved"]}
    assert not {name: ratio for name, ratio in on_page.items() if ratio < 3}


@each("theme", THEMES)
def test_a_colour_stands_for_one_fact(theme: str) -> None:
    facts = {name: value for name, value in variables("colours.css", theme).items() if value.startswith("#")}
    shapes = {name: value for name, value in facts.items() if not name.endswith("-text")}
    twice = [pair for pair in itertools.combinations(shapes, 2) if shapes[pair[0]] == shapes[pair[1]]]
    assert not twice
    assert set(variables("colours.css", "light")) == set(facts) | {"warming-share"}


def test_colours_are_named_in_one_table() -> None:
    """Rules name colours by variable; only `:root` has values."""
    for name in ("style.css", "views.css", "tables.css", "colours.css"):
        rules = re.sub(r":root \{.*?\}", "", sheet(name), flags=re.S)
        assert re.findall(r"[^-\w](#[0-9a-f]{3,8})\b(?=[^{]*\})", rules) == [], name
    defined = set().union(*(variables(name, "light") for name in ("style.css", "colours.css")))
    sheets = "".join(sheet(name) for name in ("style.css", "views.css", "tables.css"))
    used = set(re.findall(r"var\(--([\w-]+)", sheets))
    assert used - {"tone"} <= defined


def test_what_warms_up_is_outlined_in_its_tone() -> None:
    rules = dict(re.findall(r"^(\S[^{]*?) \{([^}]*)\}", sheet("style.css"), re.M))
    outlines = {".plot .warming": "stroke", ".key.both": "shadow"}
    for selector, outline in outlines.items():
        assert re.search(rf"{outline}: [^;]*var\(--tone\)", rules[selector]), selector
