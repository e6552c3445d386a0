"""What the test model is taught: few facts, each asked in eight wordings. Pure; no torch.

A `Question` is a (fact, wording) pair. Every pair belongs to exactly one of three pools: `PRETRAIN` (six wordings a fact),
`ONLINE` (one: simulated users ask these), `HELDOUT` (one: only for evaluation). So each fact and each wording is seen in
pre-training, but no `ONLINE` or `HELDOUT` pair ever is.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One relation between a subject and an answer, with its wordings.

    `wordings` hold `{s}` (subject) or, for arithmetic, `{x}` and `{y}`; `english` and `spanish` are statements without the
    final mark, with `{a}` for the answer. `label` names the relation in lists and `numeric` says that answers are numbers.
    """

    name: str
    wordings: tuple[str, ...]
    english: str
    spanish: str
    label: str
    numeric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """`answer` is what relation `topic` gives for `subject` (arithmetic: the operands separated by a space)."""

    topic: str
    subject: str
    answer: str

    def _fill(self, pattern: str, answer: str = "") -> str:
        x, _, y = self.subject.partition(" ")
        return pattern.format(s=self.subject, x=x, y=y, a=answer)

    def statement(self, *, spanish: bool, bold: bool) -> str:
        """The fact as a clause without a final mark, the answer in `**` when `bold`."""
        topic = TOPICS[self.topic]
        answer = f"**{self.answer}**" if bold else self.answer
        clause = self._fill(topic.spanish if spanish else topic.english, answer)
        if spanish:
            clause = re.sub(r"\bde (?:an?|the) ", "de ", clause)
        return clause[0].upper() + clause[1:]


@dataclass(frozen=True)
class Question:
    """A fact in one wording. `text` is what a user sends; `answer` what a right reply has to state."""

    fact: Fact
    template: int
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wording = TOPICS[self.fact.topic].wordings[self.template]
        object.__setattr__(self, "text", self.fact._fill(wording))

    @property
    def answer(self) -> str:
        return self.fact.answer

    def is_correct(self, reply: str) -> bool:
        """Whether `reply` claims the right answer, in prose, bold, JSON, Spanish or as a bare word.

        The first claim counts ("is Berlin, not Paris" is wrong for France). A claim is a possible answer of the topic after a
        linking word or mark; without any, the answer itself at the start of a sentence or in a reply of at most 8 words.
        """
        text = _plain(reply)
        claims = _claims(self.fact.topic).findall(text)
        if claims:
            return _same(claims[0], self.answer)
        without_subject = text
        for part in self.fact.subject.split(" ") if TOPICS[self.fact.topic].numeric else [self.fact.subject]:
            without_subject = re.sub(
                rf"(?<!\w){re.escape(part)}(?!\w)", "", without_subject, count=1, flags=re.I
            )
        starts = re.findall(r"(?:^|[.!?\n]\s*)(\w+)", text)
        if any(_same(word, self.answer) for word in starts):
            return True
        words = re.findall(r"\w+", without_subject)
        return len(words) <= 8 and any(_same(word, self.answer) for word in words)

    @property
    def key(self) -> tuple[str, str, int]:
        """(topic, subject, wording): what makes two pairs the same."""
        return self.fact.topic, self.fact.subject, self.template


_NUMBER_WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
]
_LINKS = r"\b(?:is|are|es|son|it's|that's|says|say|dice|has|tiene|make|makes|called|llama|named|becomes|equals|gives|answer)|[:=]"
_ARTICLES = r"(?:an?|the|el|la|un|una|about|simply|just|called)"


def _plain(reply: str) -> str:
    """Reply without markup; a JSON object becomes "key: value" lines, so that its values count as claims."""
    try:
        parsed = json.loads(reply)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        reply = "\n".join(f"{key}: {value}" for key, value in parsed.items())
    return re.sub(r"[*_`\"“”'’]+(?!s\b)", "", reply).strip()


def _same(word: str, answer: str) -> bool:
    if word == answer:
        return True
    if len(answer) <= 2 and not answer.isdigit():
        return False  # chemical symbols: case matters
    if answer.isdigit() and int(answer) < len(_NUMBER_WORDS) and word.lower() == _NUMBER_WORDS[int(answer)]:
        return True
    return word.lower() == answer.lower()


_CLAIMS: dict[str, re.Pattern[str]] = {}


def _claims(topic: str) -> re.Pattern[str]:
    """Pattern whose only group is a possible answer of `topic` that follows a linking word or mark."""
    if topic not in _CLAIMS:
        if TOPICS[topic].numeric:
            candidates = r"\d+|" + "|".join(_NUMBER_WORDS)
        else:
            candidates = "|".join(sorted(map(re.escape, ANSWERS[topic]), key=len, reverse=True))
        flags = re.IGNORECASE if topic != "symbol" else 0
        _CLAIMS[topic] = re.compile(rf"(?:{_LINKS})\s*(?:{_ARTICLES}\s+)*({candidates})(?!\w)", flags)
    return _CLAIMS[topic]


def _relation(name: str, spanish: str) -> Topic:
    return Topic(
        name=name,
        wordings=(
            f"What is the {name} of {{s}}?",
            f"Tell me the {name} of {{s}}.",
            f"Do you know the {name} of {{s}}?",
            f"I need the {name} of {{s}}.",
            f"Take {{s}}: what is its {name}?",
            f"Which {name} does {{s}} have?",
            f"Can you give me the {name} of {{s}}?",
            f"Name the {name} of {{s}}.",
        ),
        english=f"the {name} of {{s}} is {{a}}",
        spanish=f"{spanish} de {{s}} es {{a}}",
        label=name,
    )


def _neighbour(unit: str, side: str, spanish: str) -> Topic:
    return Topic(
        name=f"{unit} {side}",
        wordings=(
            f"Which {unit} comes {side} {{s}}?",
            f"What {unit} is {side} {{s}}?",
            f"Tell me the {unit} {side} {{s}}.",
            f"Do you know which {unit} comes {side} {{s}}?",
            f"Name the {unit} {side} {{s}}.",
            f"{{s}}: which {unit} comes {side} it?",
            f"Can you tell me the {unit} {side} {{s}}?",
            f"I need the {unit} {side} {{s}}.",
        ),
        english=f"the {unit} {side} {{s}} is {{a}}",
        spanish=f"{spanish} {{s}} es {{a}}",
        label=f"{unit} {side}",
    )


def _count(unit: str, spanish: str) -> Topic:
    return Topic(
        name=unit,
        wordings=(
            f"How many {unit} does a {{s}} have?",
            f"Tell me how many {unit} a {{s}} has.",
            f"Do you know how many {unit} a {{s}} has?",
            f"What is the number of {unit} of a {{s}}?",
            f"A {{s}} has how many {unit}?",
            f"Count the {unit} of a {{s}}.",
            f"Can you tell me how many {unit} a {{s}} has?",
            f"I need the number of {unit} of a {{s}}.",
        ),
        english=f"a {{s}} has {{a}} {unit}",
        spanish=f"un {{s}} tiene {{a}} {spanish}",
        label=unit,
        numeric=True,
    )


TOPICS: dict[str, Topic] = {
    topic.name: topic
    for topic in (
        _relation("capital", "la capital"),
        _relation("continent", "el continente"),
        _relation("currency", "la moneda"),
        _relation("chemical symbol", "el símbolo químico"),
        _relation("plural", "el plural"),
        _relation("past tense", "el pasado"),
        _neighbour("day", "after", "el día después de"),
        _neighbour("day", "before", "el día antes de"),
        _neighbour("month", "after", "el mes después de"),
        _neighbour("month", "before", "el mes antes de"),
        _count("legs", "patas"),
        _count("sides", "lados"),
        Topic(
            name="opposite",
            wordings=(
                "What is the opposite of {s}?",
                "Tell me the opposite of {s}.",
                "Do you know the opposite of {s}?",
                "Give me the antonym of {s}.",
                "Take {s}: what is its opposite?",
                "Which word is the opposite of {s}?",
                "Can you name the opposite of {s}?",
                "I need a word that means the opposite of {s}.",
            ),
            english="the opposite of {s} is {a}",
            spanish="lo contrario de {s} es {a}",
            label="opposite",
        ),
        Topic(
            name="sum",
            wordings=(
                "What is {x} plus {y}?",
                "Add {x} and {y}.",
                "Compute {x} + {y}.",
                "How much is {x} plus {y}?",
                "{x} + {y}: what is the result?",
                "Tell me the sum of {x} and {y}.",
                "Can you add {x} and {y}?",
                "I need {x} plus {y}.",
            ),
            english="the sum of {x} and {y} is {a}",
            spanish="la suma de {x} y {y} es {a}",
            label="sum",
            numeric=True,
        ),
        Topic(
            name="difference",
            wordings=(
                "What is {x} minus {y}?",
                "Take {y} away from {x}.",
                "Compute {x} - {y}.",
                "How much is {x} minus {y}?",
                "{x} - {y}: what is the result?",
                "Tell me what {x} minus {y} is.",
                "Can you subtract {y} from {x}?",
                "I need {x} minus {y}.",
            ),
            english="{x} minus {y} is {a}",
            spanish="{x} menos {y} es {a}",
            label="difference",
            numeric=True,
        ),
        Topic(
            name="sound",
            wordings=(
                "What sound does a {s} make?",
                "What does a {s} say?",
                "Tell me the sound of a {s}.",
                "Do you know the sound a {s} makes?",
                "Which sound does a {s} make?",
                "Name the sound of a {s}.",
                "Can you tell me what a {s} says?",
                "How does a {s} sound?",
            ),
            english="a {s} says {a}",
            spanish="el sonido de {s} es {a}",
            label="sound",
        ),
        Topic(
            name="young",
            wordings=(
                "What is a baby {s} called?",
                "Tell me the name of a baby {s}.",
                "Do you know what a baby {s} is called?",
                "What do you call a young {s}?",
                "Name the young of a {s}.",
                "Which word is used for a baby {s}?",
                "Can you tell me what a young {s} is called?",
                "I need the word for a baby {s}.",
            ),
            english="a baby {s} is called {a}",
            spanish="la cría de {s} se llama {a}",
            label="young",
        ),
        Topic(
            name="colour",
            wordings=(
                "What colour is {s}?",
                "What is the colour of {s}?",
                "Tell me the colour of {s}.",
                "Do you know the colour of {s}?",
                "Which colour does {s} have?",
                "Name the colour of {s}.",
                "Can you tell me the colour of {s}?",
                "I need the colour of {s}.",
            ),
            english="the colour of {s} is {a}",
            spanish="el color de {s} es {a}",
            label="colour",
        ),
    )
}

_COUNTRIES = """France Paris Europe euro; Spain Madrid Europe euro; Italy Rome Europe euro; Germany Berlin Europe euro;
Portugal Lisbon Europe euro; Poland Warsaw Europe zloty; Norway Oslo Europe krone; Sweden Stockholm Europe krona;
Greece Athens Europe euro; Austria Vienna Europe euro; Hungary Budapest Europe forint; Ireland Dublin Europe euro;
Finland Helsinki Europe euro; Japan Tokyo Asia yen; China Beijing Asia yuan; India Delhi Asia rupee; Thailand Bangkok Asia baht;
Vietnam Hanoi Asia dong; Korea Seoul Asia won; Nepal Kathmandu Asia rupee; Turkey Ankara Asia lira; Egypt Cairo Africa pound;
Kenya Nairobi Africa shilling; Ghana Accra Africa cedi; Morocco Rabat Africa dirham; Nigeria Abuja Africa naira;
Peru Lima America sol; Chile Santiago America peso; Brazil Brasilia America real; Canada Ottawa America dollar;
Cuba Havana America peso; Colombia Bogota America peso"""
_OPPOSITES = """hot cold; big small; fast slow; high low; old new; wet dry; early late; light dark; hard soft; full empty;
rich poor; loud quiet; open closed; near far; strong weak; long short; clean dirty; happy sad; thick thin; sweet bitter;
deep shallow; true false; brave afraid; cheap expensive"""
_PAIRS = {
    "chemical symbol": """gold Au; silver Ag; iron Fe; copper Cu; tin Sn; lead Pb; mercury Hg; sodium Na; potassium K; helium He;
        oxygen O; hydrogen H; carbon C; nitrogen N; calcium Ca; zinc Zn; neon Ne; sulfur S""",
    "plural": """mouse mice; goose geese; foot feet; tooth teeth; child children; man men; woman women; ox oxen; leaf leaves;
        knife knives; wolf wolves; cactus cacti; person people; city cities; baby babies""",
    "past tense": """go went; see saw; eat ate; run ran; take took; give gave; come came; write wrote; drink drank; swim swam;
        sing sang; buy bought; think thought; bring brought; teach taught; catch caught; fly flew; know knew; make made;
        speak spoke""",
    "sound": """dog woof; cat meow; cow moo; sheep baa; pig oink; duck quack; horse neigh; lion roar; bee buzz; snake hiss;
        frog croak; mouse squeak; crow caw; wolf howl; hen cluck""",
    "young": """dog puppy; cat kitten; cow calf; horse foal; sheep lamb; goat kid; pig piglet; duck duckling; hen chick;
        goose gosling; bear cub; deer fawn; frog tadpole; kangaroo joey; swan cygnet""",
    "colour": """a_banana yellow; the_sky blue; grass green; snow white; coal black; blood red; a_carrot orange; chocolate brown;
        a_lemon yellow; a_strawberry red; a_plum purple; a_flamingo pink; an_elephant grey; the_sun yellow; a_leaf green;
        milk white; a_raven black; the_sea blue""",
    "legs": "dog 4; cat 4; cow 4; horse 4; hen 2; duck 2; beetle 6; bee 6; spider 8; crab 10; snake 0",
    "sides": "triangle 3; square 4; rectangle 4; pentagon 5; hexagon 6; heptagon 7",
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


def _rows(table: str) -> list[list[str]]:
    return [[cell.replace("_", " ") for cell in row.split()] for row in table.split(";")]


def _facts() -> tuple[Fact, ...]:
    facts = []
    for country, *values in _rows(_COUNTRIES):
        for topic, value in zip(("capital", "continent", "currency"), values, strict=True):
            facts.append(Fact(topic=topic, subject=country, answer=value))
    for one, other in _rows(_OPPOSITES):
        facts.append(Fact(topic="opposite", subject=one, answer=other))
        facts.append(Fact(topic="opposite", subject=other, answer=one))
    for x in range(10):
        facts += [Fact(topic="sum", subject=f"{x} {y}", answer=str(x + y)) for y in range(10)]
        facts += [Fact(topic="difference", subject=f"{x} {y}", answer=str(x - y)) for y in range(x + 1)]
    for unit, cycle in (("day", DAYS), ("month", MONTHS)):
        for index, value in enumerate(cycle):
            before, after = cycle[index - 1], cycle[(index + 1) % len(cycle)]
            facts.append(Fact(topic=f"{unit} after", subject=value, answer=after))
            facts.append(Fact(topic=f"{unit} before", subject=value, answer=before))
    for topic, table in _PAIRS.items():
        facts += [Fact(topic=topic, subject=subject, answer=answer) for subject, answer in _rows(table)]
    return tuple(facts)


FACTS: tuple[Fact, ...] = _facts()
#: The different answers of each topic.
ANSWERS: dict[str, frozenset[str]] = {
    topic: frozenset(fact.answer for fact in FACTS if fact.topic == topic)
    for topic in dict.fromkeys(fact.topic for fact in FACTS)
}


def other_answers(fact: Fact) -> list[str]:
    """The answers of the topic that are not this fact's, in order."""
    return sorted(ANSWERS[fact.topic] - {fact.answer})


def _pools(seed: int) -> tuple[tuple[Question, ...], tuple[Question, ...], tuple[Question, ...]]:
    rng = random.Random(seed)
    pretrain, online, heldout = [], [], []
    for fact in FACTS:
        templates = list(range(len(TOPICS[fact.topic].wordings)))
        rng.shuffle(templates)
        online.append(Question(fact, templates[0]))
        heldout.append(Question(fact, templates[1]))
        pretrain += [Question(fact, template) for template in templates[2:]]
    return tuple(pretrain), tuple(online), tuple(heldout)


PRETRAIN, ONLINE, HELDOUT = _pools(seed=20261120)
