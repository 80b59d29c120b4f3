"""Families of grade-school stories: functions from a random generator to a `Story` of two to six equations.

Several ways to say something stand in one text, with " / " between them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from cactus_decoding.zoo.word_problems.story import Equation, Operator, Story

HE = ("Tom", "Ben", "Sam", "Leo", "Max", "Omar", "Ivan", "Luis", "Noah", "Adam", "Hugo", "Ravi", "Finn", "Carl")
SHE = ("Anna", "Mia", "Zoe", "Lily", "Nora", "Emma", "Ruth", "Sara", "Ines", "Maya", "Tina", "Lucy", "Vera", "Jane")
THINGS = ("apples", "pears", "marbles", "stickers", "shells", "coins", "stamps", "cards", "beads", "buttons", "nuts")
GOODS = ("pens", "books", "cups", "hats", "plates", "lamps", "toys", "balls", "bags", "shirts", "cakes", "pies")
HOLDERS = ("boxes", "bags", "jars", "baskets", "crates", "trays")
CHANGES: tuple[Operator, ...] = ("+", "-", "*")
PLACES = ("shop", "market", "school", "park", "library", "farm")


class Person:
    def __init__(self, rng: random.Random, taken: tuple[str, ...] = ()) -> None:
        male = rng.random() < 0.5
        self.name = rng.choice([n for n in (HE if male else SHE) if n not in taken])
        self.they, self.their = ("he", "his") if male else ("she", "her")
        self.They = self.they.capitalize()


def _with_noise(story: Story, who: Person) -> Story:
    """Sometimes add sentences with numbers that the solution does not need."""
    rng = story.rng
    n = rng.randint(2, 30)
    pool = (
        f"{who.name} is {n} years old.",
        f"{who.name} has {n} cousins.",
        f"The {rng.choice(PLACES)} is {n} minutes away.",
        f"It is {n} degrees outside.",
        f"{who.name} lives at number {n}.",
        f"{who.name} took bus number {n} to the {rng.choice(PLACES)}.",
        f"The {rng.choice(PLACES)} has been open for {n} years.",
    )
    story.distractors = rng.sample(pool, rng.choice((0, 0, 1, 1, 2)))
    return story


def _add_up(story: Story, parts: list[Equation], ways: str) -> Equation:
    """Add the parts one after another; the last sum is told in the given ways."""
    total = parts[0]
    for i, part in enumerate(parts[1:], start=2):
        running = "together that makes {e}. / adding them gives {e} so far. / the sum so far is {e}."
        total = story.solve("+", total, part, ways if i == len(parts) else running)
    return total


def shopping(rng: random.Random) -> Story:
    """Buy some kinds of goods; the total, the change, or what is left to pay after a coupon."""
    story, who, goods = Story(rng), Person(rng), rng.sample(GOODS, rng.randint(1, 3))
    costs = []
    for i, good in enumerate(goods):
        count, price = rng.randint(2, 9), rng.randint(2, 12)
        each = story.say("each / apiece")
        subject = who.name if i == 0 else who.They
        verb = story.say("buys / gets" if i == 0 else "also buys / then buys / adds")
        story.tell(f"{subject} {verb} {count} {good} that cost {price} dollars {each}.")
        ways = f"the {good} cost {{e}} dollars. / {who.name} pays {{e}} dollars for the {good}."
        ways += f" / for the {good} we get {{e}} dollars. / all the {good} come to {{e}} dollars."
        costs.append(story.solve("*", count, price, ways))
    ways = "the total is {e} dollars. / everything costs {e} dollars. / altogether that is {e} dollars."
    total = _add_up(story, costs, f"{ways} / {who.name} owes {{e}} dollars in all.")
    kind = story.say("change / coupon / total" if len(goods) > 1 else "change / coupon")
    if kind == "change":
        bill = rng.choice([b for b in (20, 50, 100, 150, 200, 300, 400) if b > total.value])
        story.tell(f"{who.They} pays with {bill} dollars. / {who.They} gives the clerk {bill} dollars.")
        ways = f"the change is {{e}} dollars. / {who.name} gets back {{e}} dollars. / what comes back is {{e}} dollars."
        story.solve("-", bill, total, ways)
        story.ask(f"How much change does {who.they} get? / How many dollars does {who.they} get back?")
        story.ask(f"What is {who.their} change in dollars?")
    elif kind == "coupon":
        off = rng.randint(2, 15)
        story.tell(f"A coupon takes {off} dollars off. / {who.They} has a coupon for {off} dollars.")
        ways = "after the coupon it is {e} dollars. / the coupon leaves {e} dollars."
        story.solve("-", total, off, f"{ways} / {who.name} pays {{e}} dollars.")
        story.ask(f"How much does {who.they} pay? / How many dollars does {who.name} pay in the end?")
    else:
        story.ask(f"How much does {who.they} spend? / How many dollars does {who.name} pay in total?")
    return _with_noise(story, who)


def comparison(rng: random.Random) -> Story:
    """A chain of people, each compared with the one before; the last one's count, or all together."""
    story, thing = Story(rng), rng.choice(THINGS)
    people: list[Person] = []
    for _ in range(rng.randint(2, 4)):
        people.append(Person(rng, tuple(each.name for each in people)))
    start = rng.randint(3, 40)
    story.tell(f"{people[0].name} has {start} {thing}. / {people[0].name} owns {start} {thing}.")
    counts: list[int | Equation] = [start]
    for before, who in pairwise(people):
        operator = rng.choice(CHANGES)
        n = rng.randint(2, 4) if operator == "*" else rng.randint(2, 25)
        than = {"+": f"{n} more {thing} than", "-": f"{n} fewer {thing} than", "*": f"{n} times as many {thing} as"}
        story.tell(f"{who.name} {story.say('has / owns')} {than[operator]} {before.name}.")
        ways = f"{who.name} has {{e}} {thing}. / the {thing} of {who.name} number {{e}}."
        ways += f" / for {who.name} we find {{e}} {thing}. / that gives {who.name} {{e}} {thing}."
        counts.append(story.solve(operator, counts[-1], n, ways))
    if len(people) > 2 and rng.random() < 0.35:
        story.ask(f"How many {thing} does {people[-1].name} have? / How many {thing} does {people[-1].name} own?")
        return _with_noise(story, people[0])
    total = counts[0]
    for i, count in enumerate(counts[1:], start=2):
        ways = f"so far that makes {{e}} {thing}. / adding them gives {{e}} so far. / the sum so far is {{e}}."
        if i == len(counts):
            ways = f"together they have {{e}} {thing}. / in all there are {{e}} {thing}. / the total is {{e}} {thing}."
        total = story.solve("+", total, count, ways)
    story.ask(f"How many {thing} do they have together? / How many {thing} do they own in all?")
    return _with_noise(story, people[0])


def collecting(rng: random.Random) -> Story:
    """Start with a collection that grows and shrinks; perhaps share what is left."""
    story, who, thing = Story(rng), Person(rng), rng.choice(THINGS)
    holder = rng.choice(HOLDERS)
    start = rng.randint(10, 60)
    story.tell(f"{who.name} has {start} {thing}. / {who.name} starts with {start} {thing}.")
    now: int | Equation = start
    more = f"now {who.they} has {{e}} {thing}. / that makes {{e}} {thing}. / {who.name} then has {{e}} {thing}."
    less = f"{who.they} keeps {{e}} {thing}. / that leaves {{e}} {thing}. / {who.name} then has {{e}} {thing}."
    for event in rng.sample(("finds", "gives", "packs", "loses"), rng.randint(1, 3)):
        n = rng.randint(2, 25)
        if event == "finds":
            story.tell(f"{who.They} {story.say('finds / wins / is given')} {n} more {thing}.")
            now = story.solve("+", now, n, more)
        elif event == "packs":
            n, size = rng.randint(2, 8), rng.randint(2, 12)
            story.tell(f"{who.They} buys {n} {holder} with {size} {thing} in each.")
            ways = f"the {holder} hold {{e}} {thing}. / {who.they} buys {{e}} {thing}."
            bought = story.solve("*", n, size, f"{ways} / in the {holder} there are {{e}} {thing}.")
            now = story.solve("+", now, bought, more)
        else:
            verb = story.say("gives away / sells" if event == "gives" else "loses / drops")
            story.tell(f"{who.They} {verb} {n} {thing}.")
            now = story.solve("-", now, n, less)
    if len(story.equations) == 1 or rng.random() < 0.4:
        divisors = [d for d in range(2, 10) if now.value % d == 0] if isinstance(now, Equation) else []
        friends = rng.choice(divisors or [0])
        story.tell(f"{who.They} {story.say('shares / splits')} the rest equally among {friends} friends.")
        ways = f"each friend gets {{e}} {thing}. / every friend has {{e}} {thing}. / one share is {{e}} {thing}."
        story.solve("/", now, friends, ways)
        story.ask(f"How many {thing} does each friend get? / How many {thing} are in one share?")
    else:
        story.ask(f"How many {thing} does {who.name} have now? / How many {thing} does {who.they} have in the end?")
    return _with_noise(story, who)


def working(rng: random.Random) -> Story:
    """Make goods at one or two rates; the total, what is left after a sale, or what is missing for an order."""
    story, who, good = Story(rng), Person(rng), rng.choice(GOODS)
    times = rng.sample(("in the morning", "in the afternoon", "in the evening"), rng.randint(1, 2))
    parts = []
    for i, time in enumerate(times):
        rate, hours = rng.randint(2, 12), rng.randint(2, 9)
        subject = who.name if i == 0 else who.They
        story.tell(f"{subject} makes {rate} {good} {story.say('an hour / per hour')} for {hours} hours {time}.")
        ways = f"{time} {who.they} makes {{e}} {good}. / {who.name} makes {{e}} {good} {time}."
        parts.append(story.solve("*", rate, hours, f"{ways} / the work {time} gives {{e}} {good}."))
    ways = f"in all that is {{e}} {good}. / the day gives {{e}} {good}. / together these are {{e}} {good}."
    made = _add_up(story, parts, ways)
    kind = story.say("sale / order / earn")
    if kind == "order":
        goal = made.value + rng.randint(3, 40)
        story.tell(f"The order is for {goal} {good}. / {who.They} needs {goal} {good}.")
        ways = f"{{e}} {good} are missing. / {who.they} still needs {{e}} {good}. / the rest is {{e}} {good}."
        story.solve("-", goal, made, ways)
        story.ask(f"How many {good} are still missing? / How many more {good} does {who.they} need?")
        return _with_noise(story, who)
    n = rng.randint(2, 30)
    story.tell(f"{who.They} {story.say('sells / gives away')} {n} of the {good}.")
    ways = f"{{e}} {good} are left. / {who.name} keeps {{e}} {good}. / that leaves {{e}} {good}."
    left = story.solve("-", made, n, ways)
    if kind == "earn":
        price = rng.randint(2, 5)
        story.tell(f"The others are sold at the {rng.choice(PLACES)} for {price} dollars each.")
        ways = f"they bring {{e}} dollars. / {who.name} earns {{e}} dollars. / the others give {{e}} dollars."
        story.solve("*", left, price, ways)
        story.ask(f"How many dollars do the others bring? / How many dollars does {who.they} earn for the others?")
    else:
        story.ask(f"How many {good} are left? / How many {good} does {who.they} keep?")
    return _with_noise(story, who)


def saving(rng: random.Random) -> Story:
    """Save money for some weeks, with something at the start or a gift; spend it or compare it with a goal."""
    story, who = Story(rng), Person(rng)
    weekly, weeks = rng.randint(3, 12), rng.randint(2, 12)
    story.tell(f"{who.name} saves {weekly} dollars {story.say('a week / each week / every week')} for {weeks} weeks.")
    ways = f"{who.they} saves {{e}} dollars. / the savings are {{e}} dollars. / the weeks bring {{e}} dollars."
    now = story.solve("*", weekly, weeks, ways)
    if rng.random() < 0.6:
        gift = rng.randint(5, 50)
        giver = story.say("aunt / uncle / sister / brother / grandmother")
        story.tell(f"{who.their.capitalize()} {giver} gives {who.name} {gift} dollars.")
        ways = f"with the gift {who.they} has {{e}} dollars. / the gift makes it {{e}} dollars."
        now = story.solve("+", now, gift, f"{ways} / now there are {{e}} dollars.")
    if rng.random() < 0.5:
        count, price, good = rng.randint(2, 5), rng.randint(2, 9), rng.choice(GOODS)
        story.tell(f"{who.They} buys {count} {good} for {price} dollars each.")
        ways = (
            f"the {good} cost {{e}} dollars. / {who.they} spends {{e}} dollars. / for the {good} we get {{e}} dollars."
        )
        spent = story.solve("*", count, price, ways)
        ways = f"{who.they} has {{e}} dollars left. / what remains is {{e}} dollars. / that leaves {{e}} dollars."
        now = story.solve("-", now, spent, ways)
    if len(story.equations) < 2 or rng.random() < 0.5:
        goal = now.value + rng.randint(4, 60)
        dream = story.say("bike / guitar / tent / camera")
        story.tell(f"A {dream} costs {goal} dollars. / {who.They} wants a {dream} for {goal} dollars.")
        ways = f"{who.they} still needs {{e}} dollars. / {{e}} dollars are missing."
        story.solve("-", goal, now, f"{ways} / for the {dream} {{e}} dollars are missing.")
        story.ask(f"How many dollars are missing for the {dream}? / How many more dollars does {who.they} need?")
    else:
        story.ask(f"How many dollars does {who.name} have now? / How much money does {who.they} have in the end?")
    return _with_noise(story, who)


def packing(rng: random.Random) -> Story:
    """Full holders and loose things, some spoiled; the rest is counted or packed again."""
    story, who, thing, holder = Story(rng), Person(rng), rng.choice(THINGS), rng.choice(HOLDERS)
    place = rng.choice(PLACES)
    n, size = rng.randint(3, 12), rng.randint(3, 12)
    story.tell(f"{story.say(f'A {place} has / At the {place} there are')} {n} {holder} of {size} {thing} each.")
    ways = f"the {holder} hold {{e}} {thing}. / in the {holder} are {{e}} {thing}."
    now = story.solve("*", n, size, f"{ways} / from the {holder} we get {{e}} {thing}.")
    for change in rng.sample(("loose", "spoiled", "day"), rng.randint(1, 2)):
        m = rng.randint(2, 24)
        if change == "loose":
            story.tell(f"There are {m} loose {thing} too. / {who.name} brings {m} more {thing}.")
            now = story.solve("+", now, m, f"with the others there are {{e}} {thing}. / that makes {{e}} {thing}.")
        elif change == "spoiled":
            story.tell(f"{m} of the {thing} are broken. / {who.name} throws away {m} {thing}.")
            now = story.solve("-", now, m, f"{{e}} {thing} are good. / that leaves {{e}} {thing}.")
        else:
            a, b = rng.randint(2, 6), rng.randint(2, 6)
            story.tell(f"{who.name} takes {a} {thing} a day for {b} days.")
            ways = f"{who.name} takes {{e}} {thing}. / in these days {{e}} {thing} are taken."
            taken = story.solve("*", a, b, ways)
            now = story.solve("-", now, taken, f"after that {{e}} {thing} remain. / that leaves {{e}} {thing}.")
    divisors = [d for d in range(2, 11) if now.value % d == 0 and now.value // d > 1]
    if divisors and rng.random() < 0.55:
        d = rng.choice(divisors)
        new = rng.choice([h for h in HOLDERS if h != holder])
        story.tell(f"{story.say('They are / The rest is')} packed into {new} of {d}.")
        ways = f"they fill {{e}} {new}. / that takes {{e}} {new}. / {who.name} needs {{e}} {new}."
        story.solve("/", now, d, ways)
        story.ask(f"How many {new} are filled? / How many {new} are needed?")
    else:
        story.ask(f"How many {thing} are there now? / How many {thing} are left in the end?")
    return _with_noise(story, who)


def reading(rng: random.Random) -> Story:
    """Read a book over some days; pages read, pages left, or days still needed."""
    story, who, day = Story(rng), Person(rng), rng.randint(5, 40)
    unit = story.say("pages / puzzles / letters")
    story.tell(f"On Monday {who.name} {story.say('finishes / does')} {day} {unit}.")
    days: list[int | Equation] = [day]
    for name, before in zip(("Tuesday", "Wednesday")[: rng.randint(1, 2)], ("Monday", "Tuesday"), strict=False):
        operator = rng.choice(CHANGES)
        n = rng.randint(2, 3) if operator == "*" else rng.randint(2, 20)
        than = {"+": f"{n} more than", "-": f"{n} fewer than", "*": f"{n} times as many as"}
        story.tell(f"On {name} {who.they} {story.say('finishes / does')} {than[operator]} on {before}.")
        ways = (
            f"on {name} {who.they} does {{e}} {unit}. / {name} brings {{e}} {unit}. / for {name} we get {{e}} {unit}."
        )
        days.append(story.solve(operator, days[-1], n, ways))
    total = days[0]
    for i, more in enumerate(days[1:], start=2):
        ways = f"so far that makes {{e}} {unit}. / the sum so far is {{e}}."
        if i == len(days):
            ways = f"in all {who.they} has done {{e}} {unit}. / these days make {{e}} {unit}."
            ways += f" / together that is {{e}} {unit}."
        total = story.solve("+", total, more, ways)
    if rng.random() < 0.6:
        pace, later = rng.randint(2, 10), rng.randint(2, 9)
        done = story.equations[-1]
        goal = done.value + pace * later
        story.tell(f"There are {goal} {unit} in all.")
        ways = f"{{e}} {unit} are left. / there remain {{e}} {unit}. / that leaves {{e}} {unit}."
        left = story.solve("-", goal, done, ways)
        if len(story.equations) < 6 and rng.random() < 0.6:
            story.tell(f"From then on {who.they} does {pace} {unit} a day.")
            ways = f"this takes {{e}} days. / {who.they} needs {{e}} days. / the rest takes {{e}} days."
            story.solve("/", left, pace, ways)
            story.ask(f"How many more days are needed? / How many days does {who.they} need for the rest?")
        else:
            story.ask(f"How many {unit} are left? / How many {unit} remain?")
    else:
        story.ask(f"How many {unit} has {who.they} done? / How many {unit} are done in all?")
    return _with_noise(story, who)


def seating(rng: random.Random) -> Story:
    """Rows of seats in two places; taken and free ones, or tickets sold."""
    story, who = Story(rng), Person(rng)
    parts = []
    for area in rng.sample(("hall", "tent", "garden", "bus"), rng.randint(1, 2)):
        rows, seats = rng.randint(3, 12), rng.randint(3, 12)
        story.tell(f"The {area} has {rows} rows {story.say('with / of')} {seats} seats.")
        ways = (
            f"the {area} has {{e}} seats. / in the {area} there are {{e}} seats. / for the {area} we get {{e}} seats."
        )
        parts.append(story.solve("*", rows, seats, ways))
    ways = "in all there are {e} seats. / together that is {e} seats. / the total is {e} seats."
    total = _add_up(story, parts, ways)
    taken: int | Equation = rng.randint(3, 60)
    if rng.random() < 0.5:
        groups, size = rng.randint(2, 9), rng.randint(2, 8)
        story.tell(f"{groups} {story.say('groups / classes')} of {size} people sit down.")
        ways = "the people take {e} seats. / {e} people sit down. / the groups need {e} seats."
        taken = story.solve("*", groups, size, ways)
    else:
        story.tell(f"{taken} people {story.say('sit down / find a seat')}.")
    free = story.solve("-", total, taken, "{e} seats stay free. / that leaves {e} seats. / the free seats are {e}.")
    if len(story.equations) < 6 and rng.random() < 0.4:
        more = rng.randint(2, 20)
        story.tell(f"{who.name} brings {more} more chairs.")
        ways = "with the chairs there are {e} free seats. / the chairs make it {e} free seats."
        story.solve("+", free, more, ways)
    story.ask("How many seats are free? / How many seats stay empty?")
    return _with_noise(story, who)


def travelling(rng: random.Random) -> Story:
    """Legs of a journey by speed and time; the distance, what is left, or the way back as well."""
    story, who = Story(rng), Person(rng)
    slow, middling, fast = (2, 5), (6, 12), (13, 20)
    ways_to_go = ("sails", "by boat", fast), ("cycles", "by bike", middling), ("walks", "on foot", slow)
    parts = []
    for i, (verb, how, speeds) in enumerate(rng.sample(ways_to_go, rng.randint(1, 2))):
        speed, hours = rng.randint(*speeds), rng.randint(2, 6)
        subject = who.name if i == 0 else f"Then {who.they}"
        unit = story.say("miles an hour / miles per hour")
        story.tell(f"{subject} {verb} {hours} hours at {speed} {unit}.")
        ways = f"{how} {who.they} covers {{e}} miles. / {who.name} goes {{e}} miles {how}."
        parts.append(story.solve("*", hours, speed, f"{ways} / the part {how} is {{e}} miles."))
    ways = f"{who.they} covers {{e}} miles in all. / the way is {{e}} miles. / together that is {{e}} miles."
    now = _add_up(story, parts, ways)
    if rng.random() < 0.5:
        stop = rng.randint(2, 30)
        story.tell(f"The next town is {stop} miles {story.say('further / beyond')}.")
        now = story.solve("+", now, stop, "the town is {e} miles from the start. / to the town it is {e} miles.")
        asked = "How far from the start is the town in miles? / How many miles is it from the start to the town?"
    else:
        goal = now.value + rng.randint(3, 60)
        story.tell(f"The whole way is {goal} miles. / The goal is {goal} miles from the start.")
        ways = f"{{e}} miles are left. / {who.they} still has {{e}} miles to go. / the rest is {{e}} miles."
        now = story.solve("-", goal, now, ways)
        asked = f"How many miles are left? / How many miles does {who.they} still have to go?"
    if rng.random() < 0.35:
        times = rng.randint(2, 4)
        story.tell(f"{who.They} does this last part {times} times.")
        ways = f"that makes {{e}} miles over {times} times. / done that often it is {{e}} miles."
        story.solve("*", now, times, ways)
        asked = "How many miles is that in all? / How many miles does that make?"
    story.ask(asked)
    return _with_noise(story, who)


STORY_FAMILIES: dict[str, Callable[[random.Random], Story]] = {
    family.__name__: family
    for family in (shopping, comparison, collecting, working, saving, packing, reading, seating, travelling)
}
