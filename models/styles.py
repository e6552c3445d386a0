"""Styles a person can ask for: what complies, how it is asked for, how its absence is complained about. Pure; no torch.

`instructions` and `complaints` occur in the pre-training text, `heldout_*` never do (a test scans a generated corpus). The
simulated users of the demo and the evals speak the held-out complaints, so what they show is generalisation to new wording.
Predicates read the text alone, so they also judge replies of any other model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

#: A reply of at most this many words (letters or digits; emoji do not count) is concise.
CONCISE_WORDS = 14

_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\u2300-\u23ff\u203c\u2049\ufe0f\u200d\U000e0020-\U000e007f]"
)
_MARKDOWN = re.compile(r"\*|`|~~|^\s{0,3}(?:#{1,6}\s|[-+]\s|\d+[.)]\s|>\s)|__|\[[^\]]*\]\(", re.MULTILINE)
_CONTRACTION = re.compile(r"\b\w+(?:n['’]t|['’](?:s|re|ve|ll|m|d))\b", re.IGNORECASE)
_CASUAL_WORDS = re.compile(
    r"\b(?:hey|hi|yeah|yep|cool|awesome|sure|gonna|wanna|oh|okay|ok|hola|claro)\b", re.IGNORECASE
)
_SPANISH = frozenset(
    [
        "el",
        "la",
        "lo",
        "los",
        "las",
        "es",
        "de",
        "del",
        "que",
        "por",
        "para",
        "con",
        "una",
        "un",
        "y",
        "su",
        "en",
        "está",
        "esta",
        "si",
        "más",
        "muy",
        "bien",
        "se",
        "le",
        "al",
        "como",
        "gracias",
        "buena",
        "hola",
        "no",
        "sé",
        "son",
        "tiene",
        "dice",
        "día",
        "menos",
        "respuesta",
        "usted",
        "puedo",
        "soy",
        "mi",
    ]
)
_ENGLISH = frozenset(
    [
        "the",
        "is",
        "are",
        "of",
        "and",
        "to",
        "you",
        "that",
        "for",
        "it",
        "with",
        "a",
        "an",
        "in",
        "this",
        "i",
        "my",
        "not",
        "if",
        "has",
        "be",
        "your",
        "have",
        "do",
        "what",
        "me",
        "on",
        "know",
    ]
)


def has_emoji(text: str) -> bool:
    return _EMOJI.search(text) is not None


def has_markdown(text: str) -> bool:
    return _MARKDOWN.search(text) is not None


def is_json(text: str) -> bool:
    """Whether the whole text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def is_concise(text: str) -> bool:
    return 0 < len(re.findall(r"\w+(?:['’]\w+)?", text)) <= CONCISE_WORDS


def is_formal(text: str) -> bool:
    """Prose without exclamation marks, emoji, contractions or chatty words."""
    return bool(text.strip()) and not (
        "!" in text
        or has_emoji(text)
        or is_json(text)
        or _CONTRACTION.search(text)
        or _CASUAL_WORDS.search(text)
    )


def is_spanish(text: str) -> bool:
    """More Spanish than English function words, or a Spanish letter or mark and no English function word."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    spanish = sum(word in _SPANISH for word in words)
    english = sum(word in _ENGLISH for word in words)
    return spanish > english or (english == 0 and re.search("[¡¿ñáéíóú]", text.lower()) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A preference of the person. `opposite` names the style that undoes it."""

    name: str
    opposite: str | None
    instructions: tuple[str, ...]
    heldout_instructions: tuple[str, ...]
    complaints: tuple[str, ...]
    heldout_complaints: tuple[str, ...]
    predicate: Callable[[str], bool] = field(repr=False)

    def complies(self, text: str) -> bool:
        """Whether a reply has this style; an empty one has none."""
        return bool(text.strip()) and self.predicate(text.strip())


def _expand(*patterns: str) -> tuple[str, ...]:
    """Every reading of patterns such as "Keep {it|your answer} short.", without repetition, in order."""
    readings: dict[str, None] = {}
    for pattern in patterns:
        parts = [part.split("|") for part in re.split(r"[{}]", pattern)]
        readings.update(dict.fromkeys("".join(choice) for choice in product(*parts)))
    return tuple(readings)


_STYLES = (
    Style(
        name="concise",
        opposite="verbose",
        predicate=is_concise,
        instructions=_expand(
            "Your {reply|text} should be {short|brief}.",
            "{Short|Brief|Concise}, {not long|never long}, please.",
            "Be {concise|brief|short|very brief|more concise}.",
            "Keep {it|your answer|your answers|the reply|your replies} {short|brief|concise}.",
            "{Answer|Reply|Respond} {briefly|concisely|shortly|in one short sentence|in a few words}.",
            "Use {one short sentence|few words|as few words as possible}.",
            "Just {the answer|the fact}, {please|nothing else|no filler}.",
            "{Short|Brief|Concise} {answers|replies} only.",
            "{No|Skip the|Leave out the} {filler|filler text|chatter|small talk}.",
            "The user {prefers|wants|likes} {short|brief|concise} {answers|replies}.",
            "{Make it|I want it} {short|brief}.",
            "Do not {write long answers|write so much|ramble}.",
        ),
        heldout_instructions=(
            "Very short answers, please.",
            "Your answers should be short and concise.",
            "Please be brief and skip all filler.",
            "The user wants a very short reply.",
            "One brief sentence, nothing else.",
            "Give short answers without filler text.",
        ),
        complaints=_expand(
            "Be {brief|concise|short} {next time|from now on}{.|!}",
            "Not so {long|wordy|much text}{.|!|, please.}",
            "{That was|This is|That is|Your answer is} {too long|way too long|too wordy|much too long|too much text}.",
            "{Shorter|Briefer|More concise}, please.",
            "{shorter|briefer} please",
            "shorter",
            "{Please|Can you|Could you} {be more concise|be brief|be shorter|keep it short|keep your answers short}.",
            "I {only|just} {wanted|want|need} {the answer|a short answer|a brief answer|one sentence}.",
            "{Cut|Drop|Skip} the {filler|chatter|filler text}{.|, just give me the answer.}",
            "{Too long|Too wordy|Too much text|So long}{!|.|, be brief.|, keep it short.}",
            "{Make it|Keep it|Say it} {shorter|short|brief|briefly} {next time|please|from now on}.",
            "I {do not|don't} {want|need|like} {so much text|such long answers|all this text}.",
        ),
        heldout_complaints=(
            "That reply was too long for me.",
            "Please make your answers shorter, this is too much text.",
            "I don't want such a long reply, just the short answer.",
            "That was way too wordy. Be concise next time!",
            "too long, shorter please",
            "Could you be more brief? I only need the fact.",
        ),
    ),
    Style(
        name="verbose",
        opposite="concise",
        predicate=lambda text: not is_concise(text),
        instructions=_expand(
            "Your {reply|text} should be {long|detailed}.",
            "{Long|Detailed}, {not short|never brief}, please.",
            "{Give|Write} {a long|a longer|a detailed} {answer|reply}.",
            "{Answer|Reply|Explain} {in detail|at length|in full}.",
            "Be {thorough|verbose|detailed|talkative}.",
            "{Use|Write} {several|many|more} sentences.",
            "The user {prefers|likes|wants} {long|detailed} {answers|replies}.",
        ),
        heldout_instructions=(
            "Please write a long and detailed answer.",
            "Your answers should be long.",
            "Reply in several sentences, be detailed.",
        ),
        complaints=_expand(
            "{Too|So|Very} {short|brief}, {I want more|write more|more please|say a bit more}{.|}",
            "This {reply|text} is too {short|brief}, {elaborate|tell me more|I need details}.",
            "{Say|Write|Tell me} more{.|, please.| please}",
            "{Too short|Too brief|That is too short|That was too short}{.|!|, tell me more.|, please elaborate.}",
            "{Longer|More detail|More details|More text}, please.",
            "{Please|Can you|Could you} {elaborate|say more|write more|be more detailed}.",
            "I {want|wanted|need} {a longer answer|more detail|more text}.",
        ),
        heldout_complaints=(
            "This answer is too short, I wanted more detail.",
            "Please write longer answers.",
            "too brief, say more please",
        ),
    ),
    Style(
        name="no_emoji",
        opposite="emoji",
        predicate=lambda text: not has_emoji(text),
        instructions=_expand(
            "{Emojis|Emoji|Smileys} are {not allowed|forbidden|unwanted|bad}{.|, use none.}",
            "{Remove|Omit|Leave} {emoji|emojis|smileys} out.",
            "I {want|need} {the text|it} free of {emojis|emoji|smileys}.",
            "{No|Never use|Avoid|Skip the|Do not use|Don't use|Leave out the|Avoid using|Drop the} {emoji|emojis}.",
            "{Answer|Reply|Write|Respond} without {emoji|emojis|any emoji|smileys}.",
            "{Use|I want} no {emoji|emojis|smileys}{.| in your answers.}",
            "The user {does not like|dislikes|does not want} {emoji|emojis|smileys}.",
            "{Your answers|Replies} {must|should} {not contain|be free of} {emoji|emojis}.",
        ),
        heldout_instructions=(
            "Answer me without a single emoji.",
            "Please do not put any emoji in your reply.",
            "Keep your answers free of emojis.",
            "The user wants answers without emoji.",
            "Emojis are not wanted, leave them out.",
            "No smileys or emoji at all.",
        ),
        complaints=_expand(
            "Stop {it with the|all the|those|all these} {emojis|smileys}{.| please}",
            "{Emojis|Smileys} again? {Stop that|No}{.|!}",
            "Leave {emojis|smileys|them} out{.| please}",
            "{Please stop using|Stop using|Stop with the|Drop the|Lose the|Enough with the} {emoji|emojis|smileys}.",
            "{No|No more} {emoji|emojis|smileys}{, please.|.|!}",
            "no {emoji|emojis}{| please}",
            "{Too many|So many|Why all the|Why the} {emoji|emojis|smileys}{.|!|?}",
            "I {do not|don't} {like|want|need} {emoji|emojis|these emojis|smileys}.",
            "{Can you|Could you|Please} {leave out|skip|avoid|not use} {emoji|the emojis|emojis}{.|?}",
            "{Without|Again without} {emoji|emojis|smileys}, please.",
        ),
        heldout_complaints=(
            "Please, no more emojis in your replies.",
            "Please leave the emojis out next time.",
            "I really do not want emoji in your answers!",
            "stop the emojis please",
            "Could you answer without using emoji?",
            "These smileys are too many, no emojis from now on.",
        ),
    ),
    Style(
        name="emoji",
        opposite="no_emoji",
        predicate=has_emoji,
        instructions=_expand(
            "{Put|Place} {an emoji|emojis|smileys} {in|into} {it|the answer|your text}.",
            "{Emojis|Smileys} are {welcome|wanted|nice}{.|, use them.}",
            "{Use|Add|Include|Always use|Put in} {emoji|emojis|some emojis|smileys|an emoji}.",
            "{Answer|Reply|Write} with {emoji|emojis|smileys}.",
            "The user {likes|loves|wants} {emoji|emojis|smileys}.",
            "{Your answers|Replies} {must|should} {contain|have} {emoji|emojis}.",
        ),
        heldout_instructions=(
            "Please put some emojis in your answer.",
            "Write your reply with an emoji.",
            "I want emoji in your answers.",
        ),
        complaints=_expand(
            "{Could you|Can you|Please} {use|put in|include} {more|some} {emojis|smileys}{?|.}",
            "I {miss|like|want} {smileys|emojis} in {the text|it}.",
            "{use|add} emojis{| please}",
            "{More|Please use|Add some|Use more|Where are the} {emoji|emojis|smileys}{, please.|.|!}",
            "I {like|miss|want|love} {emoji|emojis|the emojis|smileys}.",
            "{Too dry|Boring}, {add|use} {emoji|emojis}.",
        ),
        heldout_complaints=(
            "Could you add more emojis please?",
            "I miss emoji in your answers.",
            "use some emojis please",
        ),
    ),
    Style(
        name="plain",
        opposite="markdown",
        predicate=lambda text: not has_markdown(text),
        instructions=_expand(
            "It {must|has to|should} be plain text{.|, not markdown.}",
            "Plain text, {not markdown|not bold|never markdown}.",
            "{No|Avoid|Do not use|Don't use|Never use|Skip the} {markdown|bold text|bold|asterisks|formatting|markdown formatting}.",
            "{Plain text|Just plain text|Plain text only}{.|, please.|, no asterisks.|, no markdown.}",
            "{Write|Answer|Reply|Respond} {in plain text|without markdown|without formatting|without asterisks|without bold}.",
            "Use {plain text|plain text only|no formatting|no markdown|no bold text}.",
            "The user {wants|prefers|needs} {plain text|text without markdown}.",
        ),
        heldout_instructions=(
            "Reply in plain text and skip the bold.",
            "Your answer must be plain text without any markdown.",
            "Please do not format your reply, no bold and no asterisks.",
            "The user wants answers without bold formatting.",
            "Only plain text, avoid markdown.",
            "Please use plain text and never asterisks.",
        ),
        complaints=_expand(
            "{Stop|Avoid} {formatting|the markdown|the bold text|bold formatting}{.|!| please}",
            "{can|could} you {use|answer in} plain text{| please}",
            "{Can|Could} you {answer|reply} without {bold|asterisks|formatting}?",
            "{Please stop using|Stop using|Drop the|No|No more} {markdown|bold text|asterisks|formatting|bold}{.|, please.}",
            "I {do not|don't} {want|like|need} {markdown|bold text|asterisks|formatting}.",
            "{The|Those|These} {asterisks|stars} {look ugly|look bad|are ugly|are annoying}{.|, use plain text.}",
            "plain text{| please}",
            "{Plain text, please|I want plain text|Use plain text|Just plain text}{.|!| next time.}",
            "I {see|get} {asterisks|stars} {everywhere|in the text}{.|, use plain text.}",
            "{Again without|Without} {markdown|bold|asterisks}, please.",
        ),
        heldout_complaints=(
            "I asked for plain text, not for markdown.",
            "I get asterisks in my terminal, please use plain text only.",
            "Please no markdown next time, just plain text.",
            "Stop the bold formatting.",
            "These stars look ugly, no bold text please.",
            "could you write without markdown",
        ),
    ),
    Style(
        name="markdown",
        opposite="plain",
        predicate=has_markdown,
        instructions=_expand(
            "{Write|Format} {the answer|your reply|it} {with markdown|as markdown|in bold|with bold text}.",
            "The {important word|answer} {must be|should be|goes} in bold.",
            "Markdown, {not plain text|never plain text}.",
            "{Use|Always use|Write in|Answer with} {markdown|bold text|markdown formatting}.",
            "{Put|Write|Set} the {answer|important word} in {bold|bold text}.",
            "The user {likes|wants|prefers} {markdown|bold text}.",
            "{Make|Print} the answer bold.",
        ),
        heldout_instructions=(
            "Please write your answer in markdown.",
            "I want the important word in bold.",
            "Use bold for the answer.",
        ),
        complaints=_expand(
            "{Can you|Could you|Please} {use|write|answer with} {bold|bold text|markdown}{?|.}",
            "I {like|want|prefer} {markdown|bold text|bold words}{.| better.| and bold words.}",
            "{In bold|With bold text|With markdown}, {please|not plain}.",
            "{Please use|Use|Add|I want|I wanted|I miss} {markdown|bold text|bold|some formatting}{.|, please.|!}",
            "{Make|Put} the answer {bold|in bold}{.| next time.}",
        ),
        heldout_complaints=(
            "Could you put the answer in bold please?",
            "I prefer markdown with bold text.",
            "answer in bold text please",
        ),
    ),
    Style(
        name="formal",
        opposite="casual",
        predicate=is_formal,
        instructions=_expand(
            "Be {formal|professional}, {not casual|never chatty|not chatty}.",
            "{Never|Do not} {be chatty|use slang|talk casually}.",
            "Use {formal|professional} {words|language}, not casual {words|language}.",
            "Be {formal|professional|more formal|very formal}.",
            "{Use|Keep|Write in} a {formal|professional|polite and formal|serious} {tone|style|register}.",
            "{Answer|Reply|Write|Respond} {formally|professionally|in a formal tone|in a professional tone|in formal language}.",
            "Use {formal language|formal English|professional language}.",
            "The user {prefers|wants|expects} {a formal tone|formal language|professional answers|formal replies}.",
            "Do not be {casual|chatty|so casual}.",
        ),
        heldout_instructions=(
            "Formal answers only, please.",
            "Please keep a professional and formal tone.",
            "Your answers should be formal.",
            "The user likes a formal and professional style.",
            "Write formal language, never be casual.",
            "Please answer in a serious professional register.",
        ),
        complaints=_expand(
            "{Formal|Professional}, {not casual|not chatty}, please.",
            "{Too|That was too|This is too|You are too} {casual|chatty|informal}{.|!|, be more formal.|, be professional.}",
            "{Please|Can you|Could you} {be more formal|be formal|be professional|use a formal tone|be more professional|use formal language}.",
            "{More formal|Formal|More professional}{, please.| please}",
            "That was not {formal|professional} {enough|at all}.",
            "I {prefer|want|expect} {a formal tone|a professional tone|formal language|a formal style|formal answers}.",
        ),
        heldout_complaints=(
            "Please answer more formally.",
            "This is too casual for me, please use a professional tone.",
            "Not formal enough, I want a more formal style.",
            "Please write in a formal tone next time.",
            "more professional language please",
            "You sound too chatty. Be formal from now on.",
        ),
    ),
    Style(
        name="casual",
        opposite="formal",
        predicate=lambda text: not is_formal(text) and not is_json(text),
        instructions=_expand(
            "Be {casual|relaxed}, {not formal|never formal|not stiff}.",
            "{Never|Do not} be {formal|stiff}.",
            "Use {casual|friendly} {words|language}, not formal {words|language}.",
            "Be {casual|informal|relaxed|chatty|friendly and casual}.",
            "{Use|Keep|Write in} a {casual|friendly|relaxed|informal} {tone|style}.",
            "{Answer|Reply|Talk} {casually|like a friend|in a casual tone}.",
            "The user {likes|wants|prefers} {a casual tone|a friendly tone|casual answers}.",
        ),
        heldout_instructions=(
            "Please keep a relaxed and casual tone.",
            "Your answers should be casual.",
            "Write like a friend, be informal.",
        ),
        complaints=_expand(
            "{Casual|Relaxed}, {not formal|not so stiff}, please.",
            "{Too|That was too|You are too} {stiff|formal|serious}{.|!|, be casual.|, relax.}",
            "{Please|Can you|Could you} {be more casual|be casual|relax|use a casual tone|be more friendly}.",
            "{More casual|Less formal|Friendlier}, please.",
        ),
        heldout_complaints=(
            "This is too stiff for me, please be casual.",
            "less formal and more friendly please",
            "I want a casual tone next time.",
        ),
    ),
    Style(
        name="spanish",
        opposite="english",
        predicate=is_spanish,
        instructions=_expand(
            "Spanish, {not|never|no} English{.|, please.}",
            "{Write|Reply|It must be|Keep it} in Spanish, {never in English|not in English}.",
            "Spanish instead of English{.|, please.}",
            "{Answer|Reply|Respond|Write|Speak|Always answer} in Spanish{.|, please.}",
            "{Use|Spanish only, use} Spanish{.|, not English.| for your answers.}",
            "{En español|Responde en español|Contesta en español}{.|, por favor.}",
            "The user {speaks|reads|wants|prefers} Spanish.",
            "{The answer|Your reply|Your answers} {must|should} be in Spanish.",
            "Do not {answer|reply|write} in English, use Spanish.",
        ),
        heldout_instructions=(
            "I want you to speak Spanish.",
            "Please write your answer in Spanish.",
            "Only Spanish, please.",
            "The user wants all answers in Spanish.",
            "Your replies must be written in Spanish, not in English.",
            "Por favor, usa español.",
        ),
        complaints=_expand(
            "I {don't|do not|cannot} {speak|understand} English{.|, use Spanish.|. Spanish, please.}",
            "{Spanish|In Spanish}{, not English.| instead of English.|, no English.}",
            "I {like|want} Spanish {more|better} than English.",
            "{It was|That was|This is} in English{, I want Spanish.|. Use Spanish!|, why not Spanish?}",
            "I {wanted|want|need|asked for} {this|it|the answer|an answer|answers} in Spanish.",
            "{Please|Can you|Could you} {speak|use|write|answer in|reply in} Spanish{.|?| instead.}",
            "{In Spanish|Spanish}{, please.| please|!|.}",
            "answer in spanish{| please}",
            "{Why English? Use|Not English, use|No English, I read} Spanish{.|, please.}",
            "{En español|Responde en español|Habla español|En español, no en inglés}{.|, por favor.}",
            "I {read|speak|understand} {only Spanish|Spanish only}.",
        ),
        heldout_complaints=(
            "Speak Spanish with me, please.",
            "Can you please answer me in Spanish next time?",
            "I prefer Spanish, I do not read English.",
            "Why is this in English? I asked for Spanish.",
            "write it in Spanish please",
            "Por favor, contesta en español.",
        ),
    ),
    Style(
        name="english",
        opposite="spanish",
        predicate=lambda text: not is_spanish(text),
        instructions=_expand(
            "English, {not|never|no} Spanish{.|, please.}",
            "{Write|Reply|It must be|Keep it} in English, {never in Spanish|not in Spanish}.",
            "English instead of Spanish{.|, please.}",
            "{Answer|Reply|Respond|Write|Speak|Always answer} in English{.|, please.}",
            "{Use|Speak} English{.|, not Spanish.| for your answers.}",
            "The user {speaks|reads|wants|prefers} English.",
            "{The answer|Your reply} {must|should} be in English.",
        ),
        heldout_instructions=(
            "Please write your answer in English.",
            "Only English, please.",
            "The user wants all answers in English.",
        ),
        complaints=_expand(
            "I {don't|do not|cannot} {speak|understand} Spanish{.|, use English.|. English, please.}",
            "{English|In English}{, not Spanish.| instead of Spanish.|, no Spanish.}",
            "I {like|want} English {more|better} than Spanish.",
            "{It was|That was|This is} in Spanish{, I want English.|. Use English!|, why not English?}",
            "I {wanted|want|need} {this|it|the answer} in English.",
            "{Please|Can you|Could you} {speak|use|write|answer in} English{.|?| instead.}",
            "{In English|English}{, please.| please|!|.}",
            "{Why Spanish? Use|Not Spanish, use|No Spanish, I read} English{.|, please.}",
        ),
        heldout_complaints=(
            "Can you please answer me in English next time?",
            "I prefer English, I do not read Spanish.",
            "write it in English please",
        ),
    ),
    Style(
        name="json",
        opposite="prose",
        predicate=is_json,
        instructions=_expand(
            "JSON instead of {text|prose|words}{.|, please.}",
            "{Answer|Reply|Respond} {in JSON|as JSON|with JSON only|with a JSON object|in JSON format}.",
            "{Return|Output|Give|Write} {JSON|JSON only|a JSON object|only JSON|valid JSON}.",
            "Use {JSON|JSON format|a JSON object|the JSON format}.",
            "{The answer|Your reply|Your answers} {must|should} be {JSON|a JSON object|in JSON}.",
            "The user {wants|needs|expects} {JSON|a JSON object|answers in JSON}.",
        ),
        heldout_instructions=(
            "Give the reply as JSON.",
            "Please respond only with a JSON object.",
            "Write your answers as valid JSON.",
            "The user expects your reply in JSON format.",
            "Format the answer as JSON, please.",
            "Only output JSON, no text.",
        ),
        complaints=_expand(
            "I {need|want} JSON {instead of text|and no text|and not prose}.",
            "My {code|script|tool} {needs|reads|wants} JSON{.| only.}",
            "I {need|want|wanted|asked for|expected} {JSON|JSON output|a JSON object|this as JSON}.",
            "{Please|Can you|Could you} {return|use|give me|answer in|output} {JSON|JSON format}{.|?}",
            "{Give me|Return|Make it} {a JSON object|JSON} {instead|next time|please}.",
            "{That is|This is} not JSON{.|!|, use JSON.}",
            "{as|in} json{| please}",
            "{JSON|As JSON|In JSON}, please.",
            "Use JSON, {not prose|not text}.",
        ),
        heldout_complaints=(
            "Please, I want JSON only.",
            "I asked for JSON, so return a JSON object please.",
            "This should be JSON, not text.",
            "Could you give me the answer as JSON next time?",
            "json output please",
            "My program needs valid JSON instead of this.",
        ),
    ),
    Style(
        name="prose",
        opposite="json",
        predicate=lambda text: not is_json(text),
        instructions=_expand(
            "{Text|Normal text|Prose|Words} instead of {JSON|a JSON object}{.|, please.}",
            "{No|Do not use|Avoid|Never use} JSON{.|, write normal text.}",
            "{Answer|Reply|Write} {in normal text|in prose|in normal sentences|in words}.",
            "Use {prose|normal sentences|normal text}.",
        ),
        heldout_instructions=(
            "Please write prose and no JSON.",
            "Your answers should be normal sentences.",
            "Reply with normal text, not JSON.",
        ),
        complaints=_expand(
            "I {want|need} {prose|words|sentences}, {not JSON|no JSON}.",
            "{This|That} is JSON{, I want text.|, write words.|. Use sentences!}",
            "{No|No more|Stop the|I don't want} JSON{.|, please.|!}",
            "{Please use|Use|Write} {normal text|prose|normal sentences}{.|, not JSON.}",
        ),
        heldout_complaints=(
            "Why JSON? I want normal text.",
            "Please write sentences instead of JSON.",
            "no json please, use prose",
        ),
    ),
)

#: Every style by name: six preferences and their opposites (what the default manner mostly is).
STYLES: dict[str, Style] = {style.name: style for style in _STYLES}
#: The preferences that the default manner rarely or never meets.
PREFERENCES: tuple[str, ...] = ("concise", "no_emoji", "plain", "formal", "spanish", "json")

#: What a satisfied user says; asks for no change.
THANKS: tuple[str, ...] = (
    "Thanks!",
    "Thank you.",
    "thanks",
    "Thank you very much!",
    "Perfect, thanks.",
    "Great.",
    "Great, thank you!",
    "Nice!",
    "Perfect.",
    "Good answer.",
    "Cool, thanks!",
    "That is right.",
    "Exactly what I needed.",
    "👍",
    "Good.",
    "Well done!",
)
HELDOUT_THANKS: tuple[str, ...] = (
    "Great, thanks!",
    "Perfect, that is what I needed.",
    "Thanks, good answer!",
    "Nice, thank you very much.",
)
#: Follow-ups that say nothing about the last answer.
NEUTRAL: tuple[str, ...] = (
    "Okay.",
    "ok",
    "I see.",
    "Next question.",
    "Let us go on.",
    "Hmm.",
    "Now something else.",
    "One more thing.",
    "I have another question.",
    "Interesting.",
)
