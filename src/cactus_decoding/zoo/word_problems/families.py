"""Families of grade-school stories: functions from a random generator to a `Story` of two to six equations."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from cactus_decoding.zoo.word_problems.story import Equation, Operator, Story, equation

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


def _noise(rng: random.Random, who: Person) -> list[str]:
    """Sometimes return sentences with numbers that the solution does not need."""
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
    return rng.sample(pool, rng.choice((0, 0, 1, 1, 2)))


def _add_up(parts: list[Equation], *wordings: str) -> list[Equation]:
    """Return the equations that add the parts one after another; the last one uses the given wordings."""
    sums: list[Equation] = []
    total = parts[0]
    for i, part in enumerate(parts[1:], start=2):
        last = i == len(parts)
        running = ("together that makes {e}.", "adding them gives {e} so far.", "the sum so far is {e}.")
        total = equation("+", total, part, *(wordings if last else running))
        sums.append(total)
    return sums


def shopping(rng: random.Random) -> Story:
    """Buy some kinds of goods; the total, the change, or what is left to pay after a coupon."""
    who, goods = Person(rng), rng.sample(GOODS, rng.randint(1, 3))
    facts, costs = [], []
    for i, good in enumerate(goods):
        count, price = rng.randint(2, 9), rng.randint(2, 12)
        each = rng.choice(("each", "apiece"))
        subject = who.name if i == 0 else who.They
        verb = rng.choice(("buys", "gets")) if i == 0 else rng.choice(("also buys", "then buys", "adds"))
        facts.append(f"{subject} {verb} {count} {good} that cost {price} dollars {each}.")
        costs.append(
            equation(
                "*",
                count,
                price,
                f"the {good} cost {{e}} dollars.",
                f"{who.name} pays {{e}} dollars for the {good}.",
                f"for the {good} we get {{e}} dollars.",
                f"all the {good} come to {{e}} dollars.",
            )
        )
    sums = _add_up(
        costs,
        "the total is {e} dollars.",
        "everything costs {e} dollars.",
        "altogether that is {e} dollars.",
        f"{who.name} owes {{e}} dollars in all.",
    )
    equations = costs + sums
    total = equations[-1]
    kind = rng.choice(("change", "coupon", "total") if len(goods) > 1 else ("change", "coupon"))
    words: tuple[str, ...]
    questions: tuple[str, ...]
    if kind == "change":
        bill = rng.choice([b for b in (20, 50, 100, 150, 200, 300, 400) if b > total.value])
        facts.append(
            rng.choice((f"{who.They} pays with {bill} dollars.", f"{who.They} gives the clerk {bill} dollars."))
        )
        words = (
            "the change is {e} dollars.",
            f"{who.name} gets back {{e}} dollars.",
            "what comes back is {e} dollars.",
        )
        equations.append(equation("-", bill, total, *words))
        questions = (
            f"How much change does {who.they} get?",
            f"How many dollars does {who.they} get back?",
            f"What is {who.their} change in dollars?",
        )
    elif kind == "coupon":
        off = rng.randint(2, 15)
        facts.append(rng.choice((f"A coupon takes {off} dollars off.", f"{who.They} has a coupon for {off} dollars.")))
        words = (
            "after the coupon it is {e} dollars.",
            "the coupon leaves {e} dollars.",
            f"{who.name} pays {{e}} dollars.",
        )
        equations.append(equation("-", total, off, *words))
        questions = (f"How much does {who.they} pay?", f"How many dollars does {who.name} pay in the end?")
    else:
        questions = (f"How much does {who.they} spend?", f"How many dollars does {who.name} pay in total?")
    return Story(facts, equations, questions, _noise(rng, who))


def comparison(rng: random.Random) -> Story:
    """A chain of people, each compared with the one before; the last one's count, or all together."""
    thing = rng.choice(THINGS)
    people: list[Person] = []
    names: tuple[str, ...] = ()
    for _ in range(rng.randint(2, 4)):
        people.append(Person(rng, names))
        names = (*names, people[-1].name)
    start = rng.randint(3, 40)
    facts = [rng.choice((f"{people[0].name} has {start} {thing}.", f"{people[0].name} owns {start} {thing}."))]
    equations: list[Equation] = []
    previous: int | Equation = start
    counts: list[int | Equation] = [start]
    for before, who in pairwise(people):
        operator = rng.choice(CHANGES)
        n = rng.randint(2, 4) if operator == "*" else rng.randint(2, 25)
        relation = {
            "+": f"{n} more {thing} than {before.name}",
            "-": f"{n} fewer {thing} than {before.name}",
            "*": f"{n} times as many {thing} as {before.name}",
        }[operator]
        facts.append(f"{who.name} {rng.choice(('has', 'owns'))} {relation}.")
        wordings = (
            f"{who.name} has {{e}} {thing}.",
            f"the {thing} of {who.name} number {{e}}.",
            f"for {who.name} we find {{e}} {thing}.",
            f"that gives {who.name} {{e}} {thing}.",
        )
        previous = equation(operator, previous, n, *wordings)
        equations.append(previous)
        counts.append(previous)
    if len(people) > 2 and rng.random() < 0.35:
        questions = (f"How many {thing} does {people[-1].name} have?", f"How many {thing} does {people[-1].name} own?")
    else:
        words = (
            f"together they have {{e}} {thing}.",
            f"in all there are {{e}} {thing}.",
            f"the total is {{e}} {thing}.",
        )
        running = (f"so far that makes {{e}} {thing}.", "adding them gives {e} so far.", "the sum so far is {e}.")
        total = counts[0]
        for i, count in enumerate(counts[1:], start=2):
            total = equation("+", total, count, *(words if i == len(counts) else running))
            equations.append(total)
        questions = (f"How many {thing} do they have together?", f"How many {thing} do they own in all?")
    return Story(facts, equations, questions, _noise(rng, people[0]))


def collecting(rng: random.Random) -> Story:
    """Start with a collection that grows and shrinks; perhaps share what is left."""
    who, thing = Person(rng), rng.choice(THINGS)
    holder = rng.choice(HOLDERS)
    start = rng.randint(10, 60)
    facts = [rng.choice((f"{who.name} has {start} {thing}.", f"{who.name} starts with {start} {thing}."))]
    equations: list[Equation] = []
    now: int | Equation = start
    for event in rng.sample(("finds", "gives", "packs", "loses"), rng.randint(1, 3)):
        n = rng.randint(2, 25)
        has_now = (
            f"now {who.they} has {{e}} {thing}.",
            f"that makes {{e}} {thing}.",
            f"{who.name} then has {{e}} {thing}.",
        )
        left = (
            f"{who.they} keeps {{e}} {thing}.",
            f"that leaves {{e}} {thing}.",
            f"{who.name} then has {{e}} {thing}.",
        )
        if event == "finds":
            facts.append(f"{who.They} {rng.choice(('finds', 'wins', 'is given'))} {n} more {thing}.")
            now = equation("+", now, n, *has_now)
        elif event == "packs":
            n, size = rng.randint(2, 8), rng.randint(2, 12)
            facts.append(f"{who.They} buys {n} {holder} with {size} {thing} in each.")
            words = (
                f"the {holder} hold {{e}} {thing}.",
                f"{who.they} buys {{e}} {thing}.",
                f"in the {holder} there are {{e}} {thing}.",
            )
            bought = equation("*", n, size, *words)
            equations.append(bought)
            now = equation("+", now, bought, *has_now)
        else:
            verb = rng.choice(("gives away", "sells")) if event == "gives" else rng.choice(("loses", "drops"))
            facts.append(f"{who.They} {verb} {n} {thing}.")
            now = equation("-", now, n, *left)
        equations.append(now)
    if len(equations) == 1 or rng.random() < 0.4:
        divisors = [d for d in range(2, 10) if now.value % d == 0] if isinstance(now, Equation) else []
        friends = rng.choice(divisors or [0])
        facts.append(f"{who.They} {rng.choice(('shares', 'splits'))} the rest equally among {friends} friends.")
        words = (f"each friend gets {{e}} {thing}.", f"every friend has {{e}} {thing}.", f"one share is {{e}} {thing}.")
        equations.append(equation("/", now, friends, *words))
        questions = (f"How many {thing} does each friend get?", f"How many {thing} are in one share?")
    else:
        questions = (
            f"How many {thing} does {who.name} have now?",
            f"How many {thing} does {who.they} have in the end?",
        )
    return Story(facts, equations, questions, _noise(rng, who))


def working(rng: random.Random) -> Story:
    """Make goods at one or two rates; the total, what is left after a sale, or what is missing for an order."""
    who, good = Person(rng), rng.choice(GOODS)
    times = rng.sample(("in the morning", "in the afternoon", "in the evening"), rng.randint(1, 2))
    facts, parts = [], []
    for i, time in enumerate(times):
        rate, hours = rng.randint(2, 12), rng.randint(2, 9)
        subject = who.name if i == 0 else who.They
        unit = rng.choice(("an hour", "per hour"))
        facts.append(f"{subject} makes {rate} {good} {unit} for {hours} hours {time}.")
        words = (
            f"{time} {who.they} makes {{e}} {good}.",
            f"{who.name} makes {{e}} {good} {time}.",
            f"the work {time} gives {{e}} {good}.",
        )
        parts.append(equation("*", rate, hours, *words))
    equations = parts + _add_up(
        parts, f"in all that is {{e}} {good}.", f"the day gives {{e}} {good}.", f"together these are {{e}} {good}."
    )
    made = equations[-1]
    kind = rng.choice(("sale", "order", "earn"))
    if kind == "order":
        goal = made.value + rng.randint(3, 40)
        facts.append(rng.choice((f"The order is for {goal} {good}.", f"{who.They} needs {goal} {good}.")))
        words = (f"{{e}} {good} are missing.", f"{who.they} still needs {{e}} {good}.", f"the rest is {{e}} {good}.")
        equations.append(equation("-", goal, made, *words))
        questions = (f"How many {good} are still missing?", f"How many more {good} does {who.they} need?")
    else:
        n = rng.randint(2, 30)
        facts.append(f"{who.They} {rng.choice(('sells', 'gives away'))} {n} of the {good}.")
        words = (f"{{e}} {good} are left.", f"{who.name} keeps {{e}} {good}.", f"that leaves {{e}} {good}.")
        left = equation("-", made, n, *words)
        equations.append(left)
        questions = (f"How many {good} are left?", f"How many {good} does {who.they} keep?")
        if kind == "earn":
            price = rng.randint(2, 5)
            facts.append(f"The others are sold at the {rng.choice(PLACES)} for {price} dollars each.")
            words = ("they bring {e} dollars.", f"{who.name} earns {{e}} dollars.", "the others give {e} dollars.")
            equations.append(equation("*", left, price, *words))
            questions = (
                "How many dollars do the others bring?",
                f"How many dollars does {who.they} earn for the others?",
            )
    return Story(facts, equations, questions, _noise(rng, who))


def saving(rng: random.Random) -> Story:
    """Save money for some weeks, with something at the start or a gift; spend it or compare it with a goal."""
    who = Person(rng)
    weekly, weeks = rng.randint(3, 12), rng.randint(2, 12)
    facts = [
        f"{who.name} saves {weekly} dollars {rng.choice(('a week', 'each week', 'every week'))} for {weeks} weeks."
    ]
    words = (f"{who.they} saves {{e}} dollars.", "the savings are {e} dollars.", "the weeks bring {e} dollars.")
    now = equation("*", weekly, weeks, *words)
    equations = [now]
    if rng.random() < 0.6:
        gift = rng.randint(5, 50)
        giver = rng.choice(("aunt", "uncle", "sister", "brother", "grandmother"))
        facts.append(f"{who.their.capitalize()} {giver} gives {who.name} {gift} dollars.")
        words = (
            f"with the gift {who.they} has {{e}} dollars.",
            "the gift makes it {e} dollars.",
            "now there are {e} dollars.",
        )
        now = equation("+", now, gift, *words)
        equations.append(now)
    if rng.random() < 0.5:
        count, price, good = rng.randint(2, 5), rng.randint(2, 9), rng.choice(GOODS)
        facts.append(f"{who.They} buys {count} {good} for {price} dollars each.")
        words = (
            f"the {good} cost {{e}} dollars.",
            f"{who.they} spends {{e}} dollars.",
            f"for the {good} we get {{e}} dollars.",
        )
        spent = equation("*", count, price, *words)
        words = (f"{who.they} has {{e}} dollars left.", "what remains is {e} dollars.", "that leaves {e} dollars.")
        now = equation("-", now, spent, *words)
        equations += [spent, now]
    if len(equations) < 2 or rng.random() < 0.5:
        goal = now.value + rng.randint(4, 60)
        dream = rng.choice(("bike", "guitar", "tent", "camera"))
        facts.append(
            rng.choice((f"A {dream} costs {goal} dollars.", f"{who.They} wants a {dream} for {goal} dollars."))
        )
        words = (
            f"{who.they} still needs {{e}} dollars.",
            "{e} dollars are missing.",
            f"for the {dream} {{e}} dollars are missing.",
        )
        equations.append(equation("-", goal, now, *words))
        questions = (f"How many dollars are missing for the {dream}?", f"How many more dollars does {who.they} need?")
    else:
        questions = (f"How many dollars does {who.name} have now?", f"How much money does {who.they} have in the end?")
    return Story(facts, equations, questions, _noise(rng, who))


def packing(rng: random.Random) -> Story:
    """Full holders and loose things, some spoiled; the rest is counted or packed again."""
    who, thing, holder = Person(rng), rng.choice(THINGS), rng.choice(HOLDERS)
    place = rng.choice(PLACES)
    n, size = rng.randint(3, 12), rng.randint(3, 12)
    facts = [f"{rng.choice((f'A {place} has', f'At the {place} there are'))} {n} {holder} of {size} {thing} each."]
    words = (
        f"the {holder} hold {{e}} {thing}.",
        f"in the {holder} are {{e}} {thing}.",
        f"from the {holder} we get {{e}} {thing}.",
    )
    now = equation("*", n, size, *words)
    equations = [now]
    for change in rng.sample(("loose", "spoiled", "day"), rng.randint(1, 2)):
        m = rng.randint(2, 24)
        if change == "loose":
            facts.append(rng.choice((f"There are {m} loose {thing} too.", f"{who.name} brings {m} more {thing}.")))
            now = equation("+", now, m, f"with the others there are {{e}} {thing}.", f"that makes {{e}} {thing}.")
        elif change == "spoiled":
            facts.append(rng.choice((f"{m} of the {thing} are broken.", f"{who.name} throws away {m} {thing}.")))
            now = equation("-", now, m, f"{{e}} {thing} are good.", f"that leaves {{e}} {thing}.")
        else:
            a, b = rng.randint(2, 6), rng.randint(2, 6)
            facts.append(f"{who.name} takes {a} {thing} a day for {b} days.")
            taken = equation("*", a, b, f"{who.name} takes {{e}} {thing}.", f"in these days {{e}} {thing} are taken.")
            now = equation("-", now, taken, f"after that {{e}} {thing} remain.", f"that leaves {{e}} {thing}.")
            equations.append(taken)
        equations.append(now)
    divisors = [d for d in range(2, 11) if now.value % d == 0 and now.value // d > 1]
    if divisors and rng.random() < 0.55:
        d = rng.choice(divisors)
        new = rng.choice([h for h in HOLDERS if h != holder])
        facts.append(f"{rng.choice(('They are', 'The rest is'))} packed into {new} of {d}.")
        words = (f"they fill {{e}} {new}.", f"that takes {{e}} {new}.", f"{who.name} needs {{e}} {new}.")
        equations.append(equation("/", now, d, *words))
        questions = (f"How many {new} are filled?", f"How many {new} are needed?")
    else:
        questions = (f"How many {thing} are there now?", f"How many {thing} are left in the end?")
    return Story(facts, equations, questions, _noise(rng, who))


def reading(rng: random.Random) -> Story:
    """Read a book over some days; pages read, pages left, or days still needed."""
    who, day = Person(rng), rng.randint(5, 40)
    unit = rng.choice(("pages", "puzzles", "letters"))
    facts = [f"On Monday {who.name} {rng.choice(('finishes', 'does'))} {day} {unit}."]
    days: list[int | Equation] = [day]
    equations: list[Equation] = []
    for name, before in zip(("Tuesday", "Wednesday")[: rng.randint(1, 2)], ("Monday", "Tuesday"), strict=False):
        operator = rng.choice(CHANGES)
        n = rng.randint(2, 3) if operator == "*" else rng.randint(2, 20)
        how = {
            "+": f"{n} more than on {before}",
            "-": f"{n} fewer than on {before}",
            "*": f"{n} times as many as on {before}",
        }
        facts.append(f"On {name} {who.they} {rng.choice(('finishes', 'does'))} {how[operator]}.")
        words = (
            f"on {name} {who.they} does {{e}} {unit}.",
            f"{name} brings {{e}} {unit}.",
            f"for {name} we get {{e}} {unit}.",
        )
        days.append(equation(operator, days[-1], n, *words))
        equations.append(days[-1])  # type: ignore[arg-type]
    total = days[0]
    for i, more in enumerate(days[1:], start=2):
        words = (
            f"in all {who.they} has done {{e}} {unit}.",
            f"these days make {{e}} {unit}.",
            f"together that is {{e}} {unit}.",
        )
        running = (f"so far that makes {{e}} {unit}.", "the sum so far is {e}.")
        total = equation("+", total, more, *(words if i == len(days) else running))
        equations.append(total)
    questions: tuple[str, ...] = (f"How many {unit} has {who.they} done?", f"How many {unit} are done in all?")
    if rng.random() < 0.6:
        pace, later = rng.randint(2, 10), rng.randint(2, 9)
        goal = equations[-1].value + pace * later
        facts.append(f"There are {goal} {unit} in all.")
        left = equation(
            "-",
            goal,
            equations[-1],
            f"{{e}} {unit} are left.",
            f"there remain {{e}} {unit}.",
            f"that leaves {{e}} {unit}.",
        )
        equations.append(left)
        questions = (f"How many {unit} are left?", f"How many {unit} remain?")
        if len(equations) < 6 and rng.random() < 0.6:
            facts.append(f"From then on {who.they} does {pace} {unit} a day.")
            equations.append(
                equation(
                    "/", left, pace, "this takes {e} days.", f"{who.they} needs {{e}} days.", "the rest takes {e} days."
                )
            )
            questions = ("How many more days are needed?", f"How many days does {who.they} need for the rest?")
    return Story(facts, equations, questions, _noise(rng, who))


def seating(rng: random.Random) -> Story:
    """Rows of seats in two places; taken and free ones, or tickets sold."""
    who = Person(rng)
    areas = rng.sample(("hall", "tent", "garden", "bus"), rng.randint(1, 2))
    facts, parts = [], []
    for area in areas:
        rows, seats = rng.randint(3, 12), rng.randint(3, 12)
        facts.append(f"The {area} has {rows} rows {rng.choice(('with', 'of'))} {seats} seats.")
        words = (
            f"the {area} has {{e}} seats.",
            f"in the {area} there are {{e}} seats.",
            f"for the {area} we get {{e}} seats.",
        )
        parts.append(equation("*", rows, seats, *words))
    equations = parts + _add_up(
        parts, "in all there are {e} seats.", "together that is {e} seats.", "the total is {e} seats."
    )
    total = equations[-1]
    taken: int | Equation = rng.randint(3, 60)
    if rng.random() < 0.5:
        groups, size = rng.randint(2, 9), rng.randint(2, 8)
        facts.append(f"{groups} {rng.choice(('groups', 'classes'))} of {size} people sit down.")
        words = ("the people take {e} seats.", "{e} people sit down.", "the groups need {e} seats.")
        taken = equation("*", groups, size, *words)
        equations.append(taken)
    else:
        facts.append(f"{taken} people {rng.choice(('sit down', 'find a seat'))}.")
    free = equation("-", total, taken, "{e} seats stay free.", "that leaves {e} seats.", "the free seats are {e}.")
    equations.append(free)
    questions = ("How many seats are free?", "How many seats stay empty?")
    if len(equations) < 6 and rng.random() < 0.4:
        more = rng.randint(2, 20)
        facts.append(f"{who.name} brings {more} more chairs.")
        equations.append(
            equation("+", free, more, "with the chairs there are {e} free seats.", "the chairs make it {e} free seats.")
        )
    return Story(facts, equations, questions, _noise(rng, who))


def travelling(rng: random.Random) -> Story:
    """Legs of a journey by speed and time; the distance, what is left, or the way back as well."""
    who = Person(rng)
    slow, middling, fast = (2, 5), (6, 12), (13, 20)
    ways = rng.sample(
        (("sails", "by boat", fast), ("cycles", "by bike", middling), ("walks", "on foot", slow)), rng.randint(1, 2)
    )
    facts, parts = [], []
    for i, (verb, how, speeds) in enumerate(ways):
        speed, hours = rng.randint(*speeds), rng.randint(2, 6)
        subject = who.name if i == 0 else f"Then {who.they}"
        facts.append(f"{subject} {verb} {hours} hours at {speed} {rng.choice(('miles an hour', 'miles per hour'))}.")
        words = (
            f"{how} {who.they} covers {{e}} miles.",
            f"{who.name} goes {{e}} miles {how}.",
            f"the part {how} is {{e}} miles.",
        )
        parts.append(equation("*", hours, speed, *words))
    equations = parts + _add_up(
        parts, f"{who.they} covers {{e}} miles in all.", "the way is {e} miles.", "together that is {e} miles."
    )
    now = equations[-1]
    if rng.random() < 0.5:
        stop = rng.randint(2, 30)
        facts.append(f"The next town is {stop} miles {rng.choice(('further', 'beyond'))}.")
        now = equation("+", now, stop, "the town is {e} miles from the start.", "to the town it is {e} miles.")
        equations.append(now)
        questions = ("How far from the start is the town in miles?", "How many miles is it from the start to the town?")
    else:
        goal = now.value + rng.randint(3, 60)
        facts.append(rng.choice((f"The whole way is {goal} miles.", f"The goal is {goal} miles from the start.")))
        now = equation(
            "-", goal, now, "{e} miles are left.", f"{who.they} still has {{e}} miles to go.", "the rest is {e} miles."
        )
        equations.append(now)
        questions = ("How many miles are left?", f"How many miles does {who.they} still have to go?")
    if rng.random() < 0.35:
        times = rng.randint(2, 4)
        facts.append(f"{who.They} does this last part {times} times.")
        equations.append(
            equation("*", now, times, f"that makes {{e}} miles over {times} times.", "done that often it is {e} miles.")
        )
        questions = ("How many miles is that in all?", "How many miles does that make?")
    return Story(facts, equations, questions, _noise(rng, who))


FAMILIES: dict[str, Callable[[random.Random], Story]] = {
    family.__name__: family
    for family in (shopping, comparison, collecting, working, saving, packing, reading, seating, travelling)
}
