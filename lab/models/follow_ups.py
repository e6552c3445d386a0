"""What people say after an answer without wishing for another style, and what is replied (`follow_ups.toml`). Pure; no torch.

`wordings` occur in the pre-training text, `heldout` never do. The reply to thanks is a polite one; to everything else it is the same
answer again, in the style in force, behind a short lead.
"""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain

from lab.models.styles import HELDOUT_THANKS, STYLES, draw, expand

#: What stands for another answer than the right one in the wordings of a claim.
CLAIMED = "<answer>"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """A kind of follow-up.

    Attributes:
        wordings: the readings of each pattern of the file.
        leads: what stands before the answer, by (spanish, formal), without emoji or markup; none where the reply is not the answer.
    """

    name: str
    wordings: tuple[tuple[str, ...], ...]
    heldout: tuple[str, ...]
    leads: dict[tuple[bool, bool], tuple[str, ...]]

    def draw(self, rng: random.Random) -> str:
        """One of the wordings; see `styles.draw`."""
        return draw(rng, self.wordings)


_LEADS: dict[str, dict[tuple[bool, bool], tuple[str, ...]]] = {
    "doubt": {
        (False, False): ("I'm sure about that!", "I've checked it again!"),
        (False, True): ("I am certain of this.", "I have checked it again."),
        (True, False): ("¡Estoy muy seguro!", "¡Lo he mirado otra vez!"),
        (True, True): ("Estoy muy seguro.", "Lo he verificado de nuevo."),
    },
    "repeat": {
        (False, False): ("Here it is again!",),
        (False, True): ("Here it is again.",),
        (True, False): ("¡Aquí está otra vez!",),
        (True, True): ("Aquí está de nuevo.",),
    },
    "more": {
        (False, False): ("That's all I know!",),
        (False, True): ("That is all I know.",),
        (True, False): ("¡No sé nada más!",),
        (True, True): ("No sé nada más.",),
    },
    "claim": {
        (False, False): ("I've learnt it this way!",),
        (False, True): ("I have learnt it this way.",),
        (True, False): ("¡Yo lo he aprendido así!",),
        (True, True): ("Lo he aprendido así.",),
    },
    "thanks": {},
}
_DATA = tomllib.loads((files("lab.models") / "follow_ups.toml").read_text(encoding="utf-8"))


def _words(text: str) -> str:
    return " " + " ".join(re.findall(r"\w+", text.lower())) + " "


_HELDOUT = re.compile(
    "|".join(
        re.escape(_words(text))
        for texts in (*(kind["heldout"] for kind in _DATA.values()), HELDOUT_THANKS)
        for text in texts
    )
)
_COMPLAINTS = frozenset(
    _words(text) for style in STYLES.values() for text in chain(style.complaints, *style.free)
)


def _is_usable(text: str) -> bool:
    """Whether a wording holds nothing held out and asks for no style."""
    words = _words(text)
    return words not in _COMPLAINTS and _HELDOUT.search(words) is None


#: Every kind of follow-up by name.
FOLLOW_UPS: dict[str, FollowUp] = {
    name: FollowUp(
        name=name,
        wordings=tuple(
            usable
            for pattern in _DATA[name]["wordings"]
            if (usable := tuple(filter(_is_usable, expand(pattern))))
        ),
        heldout=tuple(_DATA[name]["heldout"]),
        leads=leads,
    )
    for name, leads in _LEADS.items()
}
#: The kinds that are answered by the same answer again.
RESTATED: tuple[str, ...] = ("doubt", "repeat", "more", "claim")
