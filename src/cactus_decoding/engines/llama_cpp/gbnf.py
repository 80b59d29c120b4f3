"""Grammars from clients, read and bounded before llama.cpp sees them.

llama.cpp reads GBNF with recursive functions and follows every way to read a text on its own, so a short grammar can
overflow its stack, fill the memory, or take hours. It has no limits for that, and a native crash ends the server.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, count
from typing import NamedTuple

MAX_TEXT = 2**18
"""Characters of a grammar: reading one takes time in proportion."""
MAX_NESTING = 200
"""Parentheses within each other: each is a few native stack frames, and a stack of 512 KiB holds a thousand."""
MAX_REPETITIONS = 1000
"""Of one item: llama.cpp writes repetitions out, and refuses a little below 2,000."""
MAX_ELEMENTS = 100_000
"""Characters, ranges and names, repetitions written out: llama.cpp copies them with every token."""
MAX_CHAIN = 1000
"""Rules that begin with each other one after another: llama.cpp visits them recursively."""
MAX_WAYS = 2000
"""Ways to reach a first character or to be in a text: llama.cpp asks each of them about every token."""
MAX_DEPTH = 1000
"""Open rules: llama.cpp copies all of them with every character."""
MAX_READINGS = 10_000
"""Ways to read one token: llama.cpp tries each of them, also where they lead to the same place."""
_TOKEN_LENGTH, _RUN_LENGTH = 16, 128
"""Characters of the tokens that readings are counted for; those that repeat one character are longer."""
MAX_RULES = 6000
"""Rules and parentheses: texts with many readings are looked for from each."""
_WORK, _LEAST_WORK = 20_000, 50
"""How much is looked at in a search for a text with many readings, about 0.1 seconds, and from each rule at least."""
_SEARCHED = 200
"""Stacks from which it is searched on; responses themselves are followed up to `MAX_WAYS`."""
_WRITTEN_OUT = 2000
"""``MAX_REPETITION_THRESHOLD`` of llama.cpp: rules within an item, times its repetitions."""
_LAST = 0x10FFFF
_END = None

Intervals = tuple[tuple[int, int], ...]
_LEXEMES = re.compile(
    r"""(?P<space>[ \t]+|\#[^\r\n]*)|(?P<newline>\r\n?|\n)|(?P<define>::=)|(?P<name>[a-zA-Z0-9-]+)
    |"(?P<literal>(?:[^"\\]|\\.)*)"|\[(?P<set>(?:[^\]\\]|\\.)*)\]|(?P<punctuation>[()|.])|(?P<repeat>[*+?])
    |\{[ \t]*(?P<low>[0-9]+)[ \t]*(?P<comma>,[ \t]*(?P<high>[0-9]+)?[ \t]*)?\}""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\[trn\\\"\[\]-]|[^\\]"
_RANGES = re.compile(rf"({_CHARACTER})(?:-({_CHARACTER}))?", re.DOTALL)
_CHARACTERS = re.compile(f"({_CHARACTER})", re.DOTALL)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}


class _Terminal(NamedTuple):
    """What one character may be; ``size`` is how many elements llama.cpp makes of it."""

    intervals: Intervals
    size: int = 1


_Alternative = list["_Terminal | int"]


@dataclass
class _Group:
    """Alternatives that are being read: those of a rule, or within parentheses."""

    rule: int
    symbols_before: int
    done: list[_Alternative] = field(default_factory=list)
    items: _Alternative = field(default_factory=list)
    last: int = 0
    rules_of_last: int = 1


class _Reader:
    """Reads GBNF into the rules that llama.cpp makes of it: repetitions and parentheses become rules of their own."""

    def __init__(self) -> None:
        self.symbols = dict[str, int]()
        self.rules = dict[int, list[_Alternative]]()
        self.inner = set[int]()  # what repetitions with a limit become, but for the first of each
        self._elements = 0

    def read(self, text: str) -> None:
        groups, previous, wanted, place = list[_Group](), "newline", "", 0
        while place < len(text):
            found = _LEXEMES.match(text, place)
            if text[place] in "<!":
                raise ValueError(
                    "it may not name tokens, which llama.cpp dies of, but has " + repr(text[place : place + 20])
                )
            if found is None or (kind := found.lastgroup) is None:
                raise _unreadable(text, place)
            kind = "repeat" if kind in ("low", "comma", "high") else kind
            if wanted and kind not in ("space", "define"):
                raise _unreadable(text, place)
            if kind == "space":
                pass
            elif kind == "newline":
                if len(groups) == 1 and previous not in ("define", "|"):
                    self._finish(groups.pop())
            elif kind == "define":
                if not wanted:
                    raise _unreadable(text, place)
                groups.append(_Group(self._symbol(wanted), 0))
                wanted = ""
            elif not groups:
                if kind != "name":
                    raise _unreadable(text, place)
                wanted = found[0]
            elif kind == "repeat":
                self._repeat(groups[-1], found)
            elif found[0] == "(":
                if len(groups) > MAX_NESTING:
                    raise ValueError(f"it may nest {MAX_NESTING} parentheses, but has more")
                before = len(self.symbols)
                groups.append(_Group(self._symbol(f"_{before}"), before))
            elif found[0] == ")":
                if len(groups) == 1:
                    raise _unreadable(text, place)
                group = groups.pop()
                self._finish(group)
                self._append(groups[-1], [group.rule], len(self.symbols) - group.symbols_before)
            elif found[0] == "|":
                _next_alternative(groups[-1])
            else:
                self._append(groups[-1], self._items(found, kind, text), 1)
            if kind != "space" and not (kind == "newline" and previous in ("define", "|")):
                previous = found[0] if kind == "punctuation" else kind
            place = found.end()
        if wanted or len(groups) > 1:
            raise _unreadable(text, place)
        for group in groups:
            self._finish(group)

    def _symbol(self, name: str) -> int:
        return self.symbols.setdefault(name, len(self.symbols))

    def _items(self, found: re.Match[str], kind: str, text: str) -> _Alternative:
        if kind == "name":
            return [self._symbol(found[0])]
        if kind == "literal":
            pieces = _matched(_CHARACTERS, found["literal"], text, found.start())
            return [_Terminal(((code, code),)) for code in (_code(each[1]) for each in pieces)]
        if kind == "set":
            negated = found["set"].startswith("^")
            pieces = _matched(_RANGES, found["set"][negated:], text, found.start())
            ranges = [(_code(each[1]), _code(each[2] or each[1])) for each in pieces]
            size = len(pieces) + sum(each[2] is not None for each in pieces)
            return [_Terminal(_complement(ranges) if negated else tuple(ranges), size)] if ranges else []
        return [_Terminal(((0, _LAST),))]

    def _append(self, group: _Group, items: _Alternative, rules: int) -> None:
        self._count(items, 0)
        group.last, group.rules_of_last = len(group.items), max(rules, 1)
        group.items += items

    def _repeat(self, group: _Group, found: re.Match[str]) -> None:
        item = group.items[group.last :]
        if not item:
            raise ValueError(f"{found[0]} must follow something that it repeats")
        if found["repeat"]:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[found["repeat"]]
        else:
            counts = [None if found[each] is None else _number(found[each]) for each in ("low", "high")]
            low, high = counts[0] or 0, counts[1] if found["comma"] else counts[0]
        if max(low, high or 0) > MAX_REPETITIONS:
            raise ValueError(f"it may repeat something {MAX_REPETITIONS} times, but has {found[0][:40]}")
        if high is not None and high < low:
            raise ValueError(f"{found[0]} must name the smaller number first")
        group.rules_of_last *= high or low or 1
        if group.rules_of_last >= _WRITTEN_OUT:
            raise ValueError(
                f"repetitions within repetitions may be {_WRITTEN_OUT - 1} in all, but {found[0]} makes more"
            )
        optional = 1 if high is None else high - low
        self._count(item, 3, max(low - 1, 0) + optional)
        group.items[group.last :] = item * low
        rule: int | None = None
        for _ in range(optional):
            before, rule = rule, self._symbol(f"_{len(self.symbols)}")
            if before is not None:
                self.inner.add(before)
            rest = [rule] if high is None else [] if before is None else [before]
            self.rules[rule] = [[*item, *rest], []]
        if rule is not None:
            group.items.append(rule)

    def _count(self, items: _Alternative, more: int, times: int = 1) -> None:
        size = sum(1 if isinstance(each, int) else each.size for each in items) + more
        self._elements += size * times
        if self._elements > MAX_ELEMENTS:
            raise ValueError(
                f"it may have {MAX_ELEMENTS:,} characters, ranges and names, repeated ones as often as they are"
            )

    def _finish(self, group: _Group) -> None:
        _next_alternative(group)
        self._count([], len(group.done))
        self.rules[group.rule] = group.done


def _next_alternative(group: _Group) -> None:
    group.done.append(group.items)
    group.items, group.last, group.rules_of_last = [], 0, 1


def _matched(pattern: re.Pattern[str], body: str, text: str, place: int) -> list[re.Match[str]]:
    pieces, end = list[re.Match[str]](), 0
    while end < len(body):
        piece = pattern.match(body, end)
        if piece is None:
            raise _unreadable(text, place)
        pieces.append(piece)
        end = piece.end()
    return pieces


def _code(character: str) -> int:
    if not character.startswith("\\") or len(character) == 1:
        return ord(character)
    return int(character[2:], 16) if character[1] in "xuU" else ord(_ESCAPES.get(character[1], character[1]))


def _complement(ranges: list[tuple[int, int]]) -> Intervals:
    left, start = list[tuple[int, int]](), 0
    for low, high in sorted(ranges):
        if low > start:
            left.append((start, min(low - 1, _LAST)))
        start = max(start, high + 1)
    if start <= _LAST:
        left.append((start, _LAST))
    return tuple(left)


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 10 else 10**9


def _unreadable(text: str, place: int) -> NotGbnfError:
    where = f"at {text[place : place + 40]!r}" if place < len(text) else "at its end"
    return NotGbnfError(f"it must be GBNF, but cannot be read {where}")


class Grammar:
    """A grammar that llama.cpp can be given: it neither overflows its stack nor takes it seconds for a token.

    Ambiguous grammars are refused where a text is found that has more than `MAX_READINGS` readings. The search for one
    is short, so a response is followed too: see `start` and `after`.

    Args:
        text: in GBNF, with a rule named root.

    Attributes:
        text: as given.

    Raises:
        ValueError: for one that is not GBNF, and for one beyond a bound.

    Example:
        >>> Grammar('root ::= "a" root | "b"').text
        'root ::= "a" root | "b"'
        >>> Grammar("root ::= " + "(" * 300 + '"a"' + ")" * 300)
        Traceback (most recent call last):
        ValueError: it may nest 200 parentheses, but has more
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise ValueError(f"it may have {MAX_TEXT:,} characters, but has {len(text):,}")
        if "\0" in text or any("\ud800" <= each <= "\udfff" for each in text):
            raise ValueError("it must have no NUL and no half of a surrogate pair")
        reader = _Reader()
        reader.read(text)
        names = {number: name for name, number in reader.symbols.items()}
        if missing := [name for name, number in reader.symbols.items() if number not in reader.rules]:
            raise ValueError(f"it has no rule named {missing[0][:40]}")
        if "root" not in reader.symbols:
            raise ValueError("it must have a rule named root")
        if len(reader.rules) - len(reader.inner) > MAX_RULES:
            raise ValueError(f"it may have {MAX_RULES:,} rules and parentheses, but has more")
        self.text = text
        _check_beginnings(reader.rules, names)
        self._flatten(reader.rules)
        self._root = self._starts[reader.symbols["root"]]
        self._nodes = dict[tuple[int, int], int]()
        self._position, self._parent, self._depth = [-1], [0], [0]
        self._reached = dict[int, tuple[int, ...]]()
        self._check_readings([rule for rule in reader.rules if rule not in reader.inner])

    def start(self) -> Followed:
        """Return where a response begins."""
        return Followed(tuple({node: None for each in self._root for node in self._advance(self._pushed(each, 0))}))

    def after(self, state: Followed, piece: bytes) -> Followed:
        """Return where a response is after one more token, which the grammar allows.

        Raises:
            ValueError: where rules are open within each other, or there are ways to be there, beyond the bounds.
        """
        codes, value, missing = list[int](), state.value, state.missing
        for byte in piece:
            if not missing:
                missing = (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
                value = byte & (0x3F >> missing if missing else 0x7F)
            else:
                value, missing = value << 6 | byte & 0x3F, missing - 1
            if not missing:
                codes.append(value)
        nodes: dict[int, None] = dict.fromkeys(state.nodes)
        for code in codes:
            nodes = self._step(nodes, code)
        if len(nodes) > MAX_WAYS:
            raise ValueError(f"the grammar is ambiguous: what is written can be read in more than {MAX_WAYS:,} ways")
        return Followed(tuple(nodes), value, missing)

    def _flatten(self, rules: dict[int, list[_Alternative]]) -> None:
        self._items = list[_Terminal | int | None]()
        self._starts = dict[int, list[int]]()
        for rule, alternatives in rules.items():
            starts = self._starts[rule] = list[int]()
            for each in alternatives:
                starts.append(len(self._items))
                self._items += [*each, _END]

    def _pushed(self, position: int, parent: int) -> int:
        """Return the stack with one more position; at an alternative's end that is the stack itself."""
        if self._items[position] is _END:
            return parent
        node = self._nodes.get((position, parent))
        if node is None:
            node = self._nodes[position, parent] = len(self._position)
            self._position.append(position)
            self._parent.append(parent)
            self._depth.append(self._depth[parent] + 1)
            if self._depth[node] > MAX_DEPTH:
                raise _TooDeepError(f"the grammar has more than {MAX_DEPTH:,} rules open within each other")
        return node

    def _advance(self, node: int) -> tuple[int, ...]:
        """Return the stacks with a character on top, and the empty one, that a stack stands for."""
        if (known := self._reached.get(node)) is not None:
            return known
        todo, seen, found = [node], set[int](), list[int]()
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            if len(seen) > MAX_WAYS:
                raise ValueError(f"the grammar has more than {MAX_WAYS:,} ways to go on at one place")
            item = self._items[self._position[each]] if each else _END
            if isinstance(item, int):
                rest = self._pushed(self._position[each] + 1, self._parent[each])
                todo += [self._pushed(start, rest) for start in self._starts[item]]
            else:
                found.append(each)
        self._reached[node] = tuple(found)
        return tuple(found)

    def _intervals(self, node: int) -> Intervals:
        item = self._items[self._position[node]] if node else _END
        return item.intervals if isinstance(item, _Terminal) else ()

    def _step(self, nodes: dict[int, None], code: int) -> dict[int, None]:
        taken = [node for node in nodes if any(low <= code <= high for low, high in self._intervals(node))]
        afters = (self._advance(self._pushed(self._position[node] + 1, self._parent[node])) for node in taken)
        return dict.fromkeys(chain.from_iterable(afters))

    def _check_readings(self, rules: list[int]) -> None:
        """Look for a text with too many readings, from the beginning and from that of each rule."""
        first = self.start().nodes
        if len(first) > MAX_WAYS:
            raise ValueError(f"it may begin in {MAX_WAYS:,} ways, but has {len(first):,}")
        self._search(first, _WORK)
        for rule in rules:
            begun = (node for start in self._starts[rule] for node in self._advance(self._pushed(start, 0)))
            self._search(tuple(dict.fromkeys(begun)), max(5 * _WORK // len(rules), _LEAST_WORK))

    def _search(self, first: tuple[int, ...], most: int) -> None:
        """Go on where readings are most already, and with the longest text among these."""
        order, work = count(0, -1), 0
        readings = Counter(first)
        todo, seen = [(-len(first), next(order), 0, readings)], {frozenset(first)}
        while todo and work < most:
            _, _, length, readings = heapq.heappop(todo)
            codes, cost = self._likeliest(readings)
            work += cost
            for code in codes:
                try:
                    after = self._read(readings, code)
                    work += len(readings)
                    run, spent = after, _RUN_LENGTH if length else 1
                    while run and spent < _RUN_LENGTH and (longer := self._read(run, code)) != run:
                        run, spent, work = longer, spent + 1, work + len(run)
                except _TooDeepError:
                    continue
                total, key = after.total(), frozenset(after)
                if total and (key not in seen or total > readings.total()):
                    seen.add(key)
                    if length + 1 < _TOKEN_LENGTH:
                        heapq.heappush(todo, (-total, next(order), length + 1, after))
                    else:
                        later = Counter([node for node, _ in after.most_common(_SEARCHED)])
                        heapq.heappush(todo, (-len(later), next(order), 0, later))

    def _read(self, readings: Counter[int], code: int) -> Counter[int]:
        """Return how many readings end in which stacks after one more character."""
        after = Counter[int]()
        for node, times in readings.items():
            if any(low <= code <= high for low, high in self._intervals(node)):
                for each in self._advance(self._pushed(self._position[node] + 1, self._parent[node])):
                    after[each] += times
        if after.total() > MAX_READINGS:
            raise ValueError("it is ambiguous: a short text can be read in thousands of ways")
        return after

    def _likeliest(self, readings: Counter[int]) -> tuple[list[int], int]:
        """Return the characters that most readings go on with, and how many were looked at."""
        edges = Counter[int]()
        for node, times in readings.items():
            for low, high in self._intervals(node):
                edges[low] += times
                edges[high + 1] -= times
        best, level = list[tuple[int, int]](), 0
        for code in sorted(edges):
            level += edges[code]
            if level > 0:
                best.append((-level, code))
        return [code for _, code in heapq.nsmallest(8, best)], len(edges)


class NotGbnfError(ValueError):
    """A text is not GBNF."""


class _TooDeepError(ValueError):
    """A text nests too deeply for a response, which says nothing of others."""


class Followed(NamedTuple):
    """Where a response is: stacks of a `Grammar`, and the beginning of a character whose end is still missing."""

    nodes: tuple[int, ...]
    value: int = 0
    missing: int = 0


def _check_beginnings(rules: dict[int, list[_Alternative]], names: dict[int, str]) -> None:
    """Check how rules begin with each other: never with themselves, and in few ways.

    A rule that repeats itself at its end, as those of ``*`` do, goes round without growing.
    """
    empty = _may_be_empty(rules)
    begins = dict[int, list[int]]()
    for rule, alternatives in rules.items():
        begins[rule] = []
        for items in alternatives:
            for place, item in enumerate(items):
                if not isinstance(item, int):
                    break
                if item != rule or place < len(items) - 1 or not place:
                    begins[rule].append(item)
                if item not in empty:
                    break
    ways, chains = dict[int, int](), dict[int, int]()
    for first in rules:
        open_rules, todo = set[int](), [first]
        while todo:
            rule = todo[-1]
            if rule in ways:
                todo.pop()
            elif rule in open_rules:
                todo.pop()
                open_rules.discard(rule)
                ways[rule] = len(rules[rule]) + sum(ways[each] for each in begins[rule])
                chains[rule] = 1 + max((chains[each] for each in begins[rule]), default=0)
                if ways[rule] > MAX_WAYS:
                    raise ValueError(
                        f"it may begin a rule in {MAX_WAYS:,} ways, but has more for {_named(rule, names)}"
                    )
                if chains[rule] > MAX_CHAIN:
                    raise ValueError(f"{MAX_CHAIN:,} rules may begin with each other, but there are more")
            else:
                open_rules.add(rule)
                ahead = [each for each in begins[rule] if each not in ways]
                if any(each in open_rules for each in ahead):
                    raise ValueError(f"no rule may begin with itself, but {_named(rule, names)} comes to that")
                todo += ahead


def _may_be_empty(rules: dict[int, list[_Alternative]]) -> set[int]:
    """Return the rules that allow the empty text."""
    users, missing = dict[int, list[tuple[int, int]]](), dict[tuple[int, int], int]()
    empty, todo = set[int](), list[int]()
    for rule, alternatives in rules.items():
        for place, items in enumerate(alternatives):
            if all(isinstance(item, int) for item in items):
                missing[rule, place] = len(items)
                for item in items:
                    assert isinstance(item, int)
                    users.setdefault(item, []).append((rule, place))
                if not items:
                    todo.append(rule)
    while todo:
        rule = todo.pop()
        if rule in empty:
            continue
        empty.add(rule)
        for user in users.get(rule, ()):
            missing[user] -= 1
            if not missing[user]:
                todo.append(user[0])
    return empty


def _named(rule: int, names: dict[int, str]) -> str:
    return "parentheses or a repetition" if names[rule].startswith("_") else names[rule][:40]
