"""Classification of a turn: main (the user or their agent) or side (the client's own requests: titles, summaries, memory). Sans-IO.

Rules are data: one table, each rule with its reason code and meaning. The presence of tools, streaming and short prompts decide nothing (all
occur on both sides). The rules read *what is requested*: a side request's object (a title, a summary, facts to keep), that it is about the
conversation itself, and the machine-readable form of its answer, in several languages. They look at the beginning and the end of the newest
user messages, because the middle may quote a whole conversation, and quoted text was not requested.

Explicit headers win over every rule (`wire.headers`). What only the record shows (a request that quotes recorded turns, an agent that hears
another) is decided by `recorder.linking`. A request that no rule matches is main. It trains only if something follows it, and nothing follows a
side turn.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from recorder.regex_prefilter import LiteralIndex, required_literals
from store.texts import content_text
from store.values import Completion, TurnKind
from wire.user_text import is_machine_event, strip_client_context, strip_reasoning

Message = Mapping[str, Any]

#: Characters at a text's beginning and end that are read as the request itself.
_HEAD_CHARS, _TAIL_CHARS = 900, 500
#: Characters of the user text since the last reply that some rules read unprocessed.
_USER_TEXT_CHARS = 2000


class _MatchCache:
    """Cache of pattern searches in recent texts, by the pattern's id (the pattern is kept, so that its id stays unique); bounded."""

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._texts: OrderedDict[str, dict[int, tuple[bool, re.Pattern[str]]]] = OrderedDict()

    def of(self, text: str) -> dict[int, tuple[bool, re.Pattern[str]]]:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = {}
            if len(self._texts) > self._capacity:
                self._texts.popitem(last=False)
        else:
            self._texts.move_to_end(text)
        return known


_MATCHES = _MatchCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierInput:
    """The input of the rules.

    Attributes:
        user_text: the newest user messages (since the last reply), as sent.
        request: beginning and end of their text without client context.
        system: beginning of the leading system messages.
        system_ends: their beginning and end, where the form of the answer is prescribed.
        trailing_system: a system message after everything else, where no user message follows the last reply.
        answer_count: number of assistant messages in the history.
        is_structured: the reply must follow a JSON schema or call one given function.
        tools: number of tools offered.
        max_tokens: the client's limit, if any.
        has_machine_event: the newest message is an envelope without user text.
        has_other_speaker: the newest user message has another name than the first.
        is_tool_output: ``trailing_system`` is the output of code or of a tool that the last reply called in its text.
        dialogue_lines: (lines of a user-assistant dialogue inside one user message, all its lines).
        form_field_count: fields of a filled form in the newest user messages: "Query: …", "### Context", <document>.
    """

    user_text: str
    request: str
    system: str
    system_ends: str
    trailing_system: str
    answer_count: int
    is_structured: bool
    tools: int
    max_tokens: int | None
    has_machine_event: bool
    has_other_speaker: bool
    is_tool_output: bool
    dialogue_lines: tuple[int, int]
    form_field_count: int

    def finds(self, pattern: re.Pattern[str], text: str) -> bool:
        """Whether a pattern matches one of the input's texts. Cached: several rules share patterns, and system prompts recur."""
        known = _MATCHES.of(text)
        found = known.get(id(pattern))
        if found is None:
            found = known[id(pattern)] = pattern.search(text) is not None, pattern
        return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    kind: TurnKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of side request; it holds when all its parts do.

    Attributes:
        reason: code that is stored with the turn.
        meaning: what `explain` displays.
        request: patterns that must all match `ClassifierInput.request`.
        system: patterns that must all match `ClassifierInput.system`.
        system_ends: patterns that must all match `ClassifierInput.system_ends`.
        is_opening: the history contains no reply (True), contains one (False), or either (None).
        condition: any further condition.
    """

    reason: str
    meaning: str
    request: tuple[re.Pattern[str], ...] = ()
    system: tuple[re.Pattern[str], ...] = ()
    system_ends: tuple[re.Pattern[str], ...] = ()
    is_opening: bool | None = None
    condition: Callable[[ClassifierInput], bool] | None = None

    def holds(self, inputs: ClassifierInput) -> bool:
        if self.is_opening is not None and self.is_opening != (inputs.answer_count == 0):
            return False
        if self.condition is not None and not self.condition(inputs):
            return False
        return (
            all(inputs.finds(pattern, inputs.system) for pattern in self.system)
            and all(inputs.finds(pattern, inputs.request) for pattern in self.request)
            and all(inputs.finds(pattern, inputs.system_ends) for pattern in self.system_ends)
        )


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _near(one: str, other: str, within: int) -> re.Pattern[str]:
    """Return a pattern for two parts in either order, at most ``within`` characters apart."""
    return _re(rf"(?:{one}).{{0,{within}}}?(?:{other})|(?:{other}).{{0,{within}}}?(?:{one})")


# ------------------------------------------------------------------------ words
# The objects of side requests, in the languages that clients use. Whole words where a script separates words.

_MAKE = r"\b(generat\w*|creat\w*|writ\w*|suggest\w*|provid\w*|giv\w*|propos\w*|come up with|produc\w*|return|pick|output\w*|name|erstell\w*|schreib\w*|gib|vergib|génér\w*|donne\w*|crea|genera|escrib\w*|scrivi)\b"
_A_TALK = (
    r"\b(conversations?|chats?|dialogs?|dialogues?|discussions?|sessions?|threads?|messages?|transcripts?|exchanges?)\b"
    r"|\b(gespräche?s?|unterhaltung(en)?|chat-?verlaufs?|verlaufs?|sitzung)\b|\b(échanges?|discussions?)\b"
    r"|\b(conversaci[oó]n(es)?|charla|diálogo)\b|\b(conversazion[ei]|dialogo)\b|\b(conversas?|bate-papo)\b|\bgesprek\b"
    r"|разговор|беседы|диалог|чат[ауе]?\b|对话|会话|聊天|對話|會話|会話|対話|チャット|대화|채팅"
)
#: The current conversation, not just any.
_THE_TALK = (
    r"\b(this|the|our|its|above|following|entire|whole|users?'?s?|recent|previous|earlier|provided|these|those)\b\W+(?:\w+\W+){0,3}?"
    r"(?:conversations?|chats?|dialogs?|dialogues?|discussions?|sessions?|threads?|transcripts?|exchanges?|messages|history|interactions?)\b"
    r"|\b(this|our) talk\b|\bconversation (history|so far|above)\b|\b(chat|message) history\b|\blines of conversation\b"
    r"|\b(dieses?|das|den|diese|folgende[ns]?|bisherige[ns]?|obige[ns]?|unser\w*)\b\W+(?:\w+\W+){0,2}?(?:gesprächs?|unterhaltung|chats?|verlaufs?|dialogs?)\b"
    r"|\b(cette|la|notre) (conversation|discussion)\b|\b(esta|la|nuestra) (conversaci[oó]n|charla)\b|\b(questa|la) conversazione\b|\b(esta|a) conversa\b"
    r"|(этот|этого|наш\w*|выше) (разговор|диалог|чат|бесед)\w*|对话|会话|聊天记录|對話|會話|会話|対話|대화"
)
_TITLE = (
    r"\b(titles?|headlines?|headings?|subject lines?)\b|\b(titel|überschrift)\b|\btitres?\b|\bt[ií]tulos?\b|\btitol[oi]\b|заголов\w+|название"
    r"|标题|標題|题目|タイトル|題名|제목"
)
_TAGS = r"\b(tags?|labels|categories|keywords|hashtags|schlagwörter|schlagworte|stichwörter|mots-clés|étiquettes|etiquetas)\b|标签|關鍵詞|关键词|タグ|키워드|теги"
_SUM_UP = (
    r"\b(summar\w+|sum(s|med|ming)? up|recap\w*|condens\w+|compress\w*|compact(?:ing|ion|ed)|compact (?:the|this|our|your)|digest|hand-? ?(over|off))\b"
    r"|\b(zusammenfass\w+|zusammengefasst)\b|\bfasse?\b.{0,80}\bzusammen\b|\brésum\w+|\bresum(e|ir|en|o|a)\b|\briassum\w+|\bsamenvat\w+"
    r"|总结|總結|概括|摘要|压缩|壓縮|要約|まとめ|요약|кратко излож|резюм(ир|е)|краткое содержание|конспект"
)
#: A request for a summary; a text that begins with "Summary of our conversation:" is one already.
_TO_SUM_UP = (
    r"\b(summari[sz](e|es|ing)|condens(e|es|ing)|compress(es|ing)?|sum(s|ming)? up|extract(s|ing)? key)\b"
    r"|\b(create|produce|write|provide|generate)\b.{0,30}\bsummar(y|ies)\b|\bzusammenfassen\b|\bfasse?\b.{0,60}\bzusammen\b"
    r"|\brésum(e|er|ez)\b|\bresum(e|ir)\b|\briassum(i|ere)\b|(请|將|将|擅长|进行).{0,30}(总结|概括|压缩|總結)|要約して"
)
#: How programs prescribe the form of an answer.
_FORM = (
    r"\b(only|nothing else|alone|solely|exclusively|exactly|json|verbatim|go straight)\b|\bno (explanations?|quot\w+|preamble|punctuation|markdown|other text|prefix|full stop|emojis?)\b"
    r"|\bwithout (\w+ )?(quot\w+|explanation|punctuation|lead-in|preamble)|\b(at most|maximum|max\.?|up to|no more than)\b.{0,12}\b(words|characters|tokens)\b|\b(or|and) (less|fewer)\b"
    r"|\b\w+[- ]words?\b|\bdo not (explain|include|add|use|answer|respond)\b|\b(nur|ausschließlich|keine|höchstens|maximal)\b|\b(uniquement|seulement|maximum|sans)\b|\b(solo|s[oó]lo|solamente|soltanto|máximo)\b"
    r"|только|仅|只|不要|以内|以內|だけ|のみ|文字以内|만 "
)
_COUNT = r"(\d+|one|two|three|four|five|six|seven|eight|ten|a few)"
#: The purpose of a client's summary: the conversation continues without its beginning.
_FOR_LATER = (
    r"\b(replac\w+|resum(e|ing)|continu\w+|carr(y|ies) on|pick(s|ing)? up|hand-? ?(off|over)|compact\w*|successor|overwrite|future context|future reference|context (window|limit|length)s?)\b"
    r"|\b(fresh|new|next|another|later|different|subsequent|future) (agent|assistant|context|session|conversation|task|instance|chat|model|llm)\b"
    r"|\b(old|earlier|previous|prior|removed|dropped)\b.{0,30}\bmessages\b|\bwill be (gone|lost|removed|dropped|discarded|deleted)\b|\bprompt for\b|\bout of context\b"
    r"|替代|取代|替换|后续|後續|继续|繼續|引き継|以降の会話|コンテキスト|이어서|컨텍스트"
    r"|\b(nächste[rn]?|anderer|neue[rn]?) (assistent|agent|kontext|sitzung)\b|\bweiterarbeit\w*|\bfort(setz|führ)\w*|\b(nuevo|novo|nouveau|nuovo) (contexto?|contexte|contesto)\b|\bcontinuar\b|\bretomar\b"
    r"|\b(poursuivre|reprendre)\b|\b(proseguire|riprendere)\b|\bпродолж\w+|\bнов\w+ контекст"
)
#: Instructions that only a program needs.
_ONLY_THIS = r"\b(only|just) (with )?(the|a) (summary|title|text|name|description|subject)\b|\bnothing else\b|\b(the|a) (title|name) (alone|only|itself)\b|\btext only\b|\bdo not call\b|\bonly (return|output|reply|respond|give|write)\b|\b(return|output|reply|respond|answer)( with)? \*?only\b"
#: A title of a conversation, not a title bar in a chat window.
_TITLE_OF = (
    rf"(?:{_TITLE})(?! bar).{{0,80}}?\b(for|of|that|which|to|based on|summari\w+|describ\w+|für|zu[mr]?|pour|para|per|de|del|della?)\b.{{0,60}}?(?:{_A_TALK})"
    rf"|(?:{_THE_TALK}|\b(conversation|dialogue|exchange|thread|session)s?\b).{{0,120}}?(?:{_TITLE})(?! bar)|(?:标题|標題|题目|タイトル|題名|제목).{{0,60}}(?:{_A_TALK})|(?:对话|会话|聊天|對話|會話|会話|대화).{{0,60}}(?:标题|標題|题目|タイトル|題名|제목)"
)
_QUERY = r"\b(quer(y|ies)|questions?|messages?|follow[- ]?ups?|inputs?|frage|nachricht|pregunta|pergunta|domanda|вопрос|запрос)\b|问题|質問|질문"
_NEXT_SPEAKER = r"\b(select|pick|choose|decide)\b.{0,30}\b((the )?next (role|speaker|agent|participant)|who (speaks|talks|goes|acts) next)\b|\bwho should (\w+ )?(speak|talk|go|act) next\b|\bnext[_ ]speaker\b"
_NEXT_SPEAKER += r"|\b(takes?|has) the next turn\b|\b(who|which \w+) (should |must |will )?(acts?|speaks?|talks?) next\b|\b(worker|agent|participant) to act next\b|\bnext (worker|participant|speaker|agent)\b.{0,60}\b(act|respond|select)"
_STAND_ALONE = (
    r"\bstand[- ]?alone\b|\bstands? (alone|on its own)\b|\bself-contained\b|\bwithout the (chat )?history\b|\bindependent(ly)? of the (chat|conversation)|\bohne den \w*verlauf\b|\beigenständig|\bfür sich (allein )?verständlich"
    r"|\bind[eé]pend[ei]nte?\b|\bindipendente\b|\bautonom[aeo]\b|\bautosuficiente\b|самостоятельн|独立|完整的问题|不依赖|単独で|독립적"
)

#: Speakers in a dialogue that a program wrote out. People who paste a chat write names.
_PEOPLE = (
    "user",
    "human",
    "nutzer",
    "usuario",
    "utilisateur",
    "utente",
    "usuário",
    "用户",
    "人类",
    "使用者",
    "ユーザー",
    "사용자",
    "пользователь",
)
_MODELS = (
    "assistant", "ai", "bot", "model", "agent", "assistent", "asistente", "assistente", "助手", "助理", "アシスタント", "어시스턴트",
    "ассистент",
)  # fmt: skip
_MARKUP = " \t#*>|<[(\"'`-•"
_SPEAKS = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}\W{0,6}[:：>\]]")
_PACKED_USER = re.compile(r"""["']role["']: ?["'](?:user|human)["']""")
_PACKED_MODEL = re.compile(r"""["']role["']: ?["'](?:assistant|ai|model)["']""")
_SLOT = re.compile(
    r"[ \t]*(?:[#*\[]{0,5} ?[A-Z][\w' ()-]{1,40}(?:[:：]|\][:：]?|\*\*[:：]?)|#{1,5} [A-Z][\w' -]{2,40}$|</?[A-Za-z][\w -]{1,30}>\s*$|[\"'`]{3}|[-=+]{5,}\s*$)"
)
#: Characters of a text's beginning and end that are searched for dialogues and forms.
_FORM_CHARS = 6000

#: Text processing that programs request. People request it as well, but without "Your task is to …" before it.
_PROCESS = (
    r"(?:analy[sz](?:e|es|ing)|extract\w*|identif\w+|determin\w+|classif\w+|categori[sz]\w+|summari[sz]\w*|compress\w*|compact\w*|condens\w*"
    r"|consolidat\w*|distil\w*|evaluat\w*|assess\w*|scor(?:e|ing)|rat(?:e|ing)|grad(?:e|ing)|judg\w+|detect\w*|decid\w+|re-?phras\w*|re-?writ\w*"
    r"|reformulat\w*|(?:re)?rank\w*|rout(?:e|ing)|select\w*|choos\w+|tag(?:ging)?|titl(?:e|ing)|nam(?:e|ing)|check\w*|verif\w+|maintain\w*|merg\w+"
    r"|curat\w+|predict\w*|compar\w+|convert\w*|synthesi[sz]\w*|process)"
)
#: A program's role: "You are a relevance scoring assistant", "You are the memory reflector".
_ROLE = (
    r"\byou(?:'re| are)(?: now| to)? (?:[\w'’-]+,? ){0,6}?(?:summari[sz]\w+|titling|titles?|naming|classif\w+|categori[sz]\w+|extract(?:or|ion|ing)|re-?phras\w+"
    r"|re-?writ(?:er|ing)|reformulat\w+|judge|evaluat(?:or|ion|ing)|grad(?:er|ing)|scor(?:er|ing)|auditor|moderat(?:or|ion)|router|routing|detector|compress\w+"
    r"|compacting|condens\w+|consolidat\w+|distill\w*|(?:re)?rank(?:er|ing)|predict(?:or|ion|ing)|checker|diagnostic|suggestions?|tagging|labell?(?:er|ing)"
    r"|memory (?!blocks)[\w-]+|emoji|synthesi[sz]er|analy[sz]er|post-?processor)\b"
    rf"|\byou(?:'re| are)\b[^.\n]{{0,80}}?\b(?:that|who|which|and|helping to|here to|used to|trained to|trained in|capable of|responsible for|specialized in|specializing in)(?: can| will)? (?:\w+ )?(?:{_PROCESS}|generating (?:\w+ ){{0,4}}(?:summar\w+|quer\w+|titles?|questions|labels))\b"
    rf"|\bhelps? (?:a|the) (?:human|user|analyst)(?: \w+)? (?:to )?{_PROCESS}\b"
    r"|\bdu bist [^.\n]{0,60}?(?:prüfer|bewert|klassifi|titel|zusammenfass|gutachter|richter\b|gedächtnis|extraktion)"
    r"|\b(?:eres|você é) [^.\n]{0,60}?(?:clasific|classific|resum|títul|evalu|avali|juez|juiz|extra[ct]|memoria|memória)"
    r"|\b(?:tu es|vous êtes) [^.\n]{0,60}?(?:titre|résum|classif|évalu|juge\b|extract|mémoire)|\bsei [^.\n]{0,60}?(?:titol|riassun|classific|valut|giudic|estra)"
    r"|\b(?:ты|вы)\b[^.\n]{0,60}?(?:заголов|резюм|классиф|оцен|судь|извлеч|памят)"
    r"|你是[^。\n]{0,30}?(?:标题|总结|摘要|概括|分类|评估|评审|裁判|改写|重写|提取|记忆|压缩|审核|路由)"
    r"|あなたは[^。\n]{0,40}?(?:タイトル|要約|分類|評価|審査|抽出|書き換え|記憶)|당신은[^.\n]{0,40}?(?:제목|요약|분류|평가|추출|기억)"
)
_TASK = (
    rf"\bbuilding a memory\b|\bsummari[sz]ation request\b|\b(?:your|the) (?:[\w-]+ ){{0,3}}(?:job|task|goal|role|responsibility|function|purpose|mission|objective)\b[^.\n]{{0,40}}?\b(?:is|are) (?:\w+ )?to (?:[^.\n]{{0,60}}\bbut )?(?:\w+ ){{0,3}}?{_PROCESS}\b"
    rf"|\b(?:is|are) to (?:\w+ )?(?:create|write|produce|generate|provide) (?:\w+ ){{0,5}}?(?:summar(?:y|ies)|titles?|quer(?:y|ies)|tags|labels|verdicts?)\b|\btasked with (?:\w+ ){{0,6}}?{_PROCESS}\b|\byou (?:need to|must|should|have to) (?:\w+ )?{_PROCESS}\b|\bdesigned to {_PROCESS}\b"
    r"|\b(?:deine|ihre) aufgabe\b[^.\n]{0,80}?(?:extrahier|zusammen|klassifizier|bewert|prüf|formulier|analysier|erkenn|entscheid|einordn|benenn|titel)"
    r"|\b(?:tu (?:tarea|objetivo|función)|(?:sua|tua) (?:tarefa|função)|il tuo (?:compito|ruolo)|(?:ta|votre) (?:tâche|mission)|chargée? d)\b[^.\n]{0,80}?"
    r"(?:extra|resum|résum|riassum|clasific|classif|evalu|évalu|valut|avali|reformul|riformul|analiz|analys|detect|identific|determin|t[ií]tul|titre|titol)"
    r"|\b(?:твоя|ваша) задача\b[^.\n]{0,80}?(?:извле|сумм|классиф|оцен|определ|переформул|заголов)"
    r"|(?:你的(?:任务|职责|工作|目标)是?|负责)[^。\n]{0,30}?(?:提取|总结|概括|摘要|分类|判断|评估|改写|重写|识别|标题|压缩|整理)"
    r"|あなたの(?:役割|タスク|仕事|任務)は[^。\n]{0,40}?(?:抽出|要約|分類|判定|評価|書き換え|言い換え|識別)|당신의 (?:임무|역할|작업)[^.\n]{0,40}?(?:추출|요약|분류|평가|판단)"
)
_GIVEN = (
    r"\A[^\n]{0,100}\b(?:is|are) (?:given|shown|provided|listed) below\b|\A\W{0,12}(?:(?:given(?=[^\n]{0,80}\b(?:conversation|chat|dialog|quer|question|document|statement|text|message|context|input|prompt|history|answer|user|truth|passage|response|sentence|fact|summar)\w*)|based on|analy[sz]e|determine|below (?:is|are)|review the following|auf (?:der )?(?:basis|grundlage)|anhand|dad[ao]|à partir d\w*|étant donné|basándote"
    r"|com base|sulla base|dat[oa]|на основе)\b|根据|以下|基于|다음)"
)
#: A prompt that begins with an instruction about text.
_ORDER = r"\A\W{0,12}(?:(?:goal|task|role|objective|instructions?)\W{1,6})?(?:please |briefly |carefully )?(?:analy[sz]e|extract|identify|determine|classify|categori[sz]e|summari[sz]e|evaluate|assess|score|rate|grade|judge|detect|re-?phrase|re-?write|reformulate|compress|condense)\b"
#: A program refers to the user in the third person.
_THIRD_PERSON = r"\busers?(?:'s|’s|')? (?:\w+ )?(?:query|queries|message|input|question|request|intent|intention|prompt|utterance|memor(?:y|ies)|draft)\b|\b(?:conversation|dialogue?|exchange) between (?:a|the|an) (?:user|human)\b"
#: … and the answer is not for the user.
_NOT_ANSWERED = r"\b(?:do not|don't|never|not to) (?:try to |attempt to |directly )?(?:answer|respond to|reply to|execute|follow|complete|perform|solve|carry out) (?:it\b|them\b|the (?:message|question|query|request|task|prompt|draft|conversation|user'?s? (?:message|question|query|request|prompt)))|\brather than answer\w*\b|\bnot an instruction executor\b|\bnicht beantworten\b|\bbeantworte (?:sie|die frage) nicht\b|\bne répon\w+ pas\b|\bno respondas\b|\bnão responda\b|\bне отвечай\b|不要回答|回答しない"
#: An instruction about text in the middle of a prompt.
_ORDERED = r"(?:[.:\n]\s*)(?:classify|extract|summari[sz]e|identify|determine|rate|score|grade|rewrite|rephrase|label|categori[sz]e|evaluate|decide (?:if|whether)|detect|assess) (?:the|each|this|whether|all|any|if|how) "
#: A form of answer that only a program reads.
_STRICT = (
    rf"{_ONLY_THIS}|(?<![a-z])json(?![a-z])|\bnothing (?:but|except)\b|\bno (?:other|additional|extra|further) \w+\b|\bno (?:explanation|preamble|commentary|introduction)s?\b"
    r"|\b(?:do not|don't|never) (?:\w+ ){0,2}?(?:explain|include|add|answer|respond|execute|follow|write|address)\b|\bwithout (?:any )?(?:explanation|additional|comment|further)"
    r"|\b(?:yes|true|safe)\b\W{1,5}(?:or|/|and|\(1\) or)\W{0,3}(?:no|false|unsafe)\b|\bbinary\b|\bverdicts?\b|\b(?:score|rating) (?:of|from|between|should|must|is)\b|\bon a scale\b"
    r"|\b(?:one|each|entry) (?:\w+ )?(?:per|on (?:a|its own|one)) (?:\w+ )?line\b|\b(?:comma|newline)[- ]separated\b|\bseparated by\b|\boutput format\b|\bformat\W{0,3}:|\bschema\b|\bxml\b"
    r"|\b(?:following|exact|this|specified) (?:\w+ ){0,2}(?:format|structure|outline)\b|\bmust call\b|\bonly (?:extract|use|select|include|consider)\b|\bdo not (?:\w+ ){0,2}output\b|\breturn the (?:choice|index|number)"
    r"|\b(?:respond|reply|answer) with (?:the|a|an|one|just) (?:\w+ ){0,2}(?:numbers?|names?|letter|index|id|word|label|choice|category|score|code|role)\b"
    r"|\bantworte\w* (?:nur|ausschließlich)\b|\bgib (?:nur|ausschließlich)\b|\bohne (?:erklärung|anführungszeichen|einleitung)|\b(?:nur|ausschließlich) (?:den|die|das|mit) \w+ (?:aus|zurück)"
    r"|\b(?:solo|s[oó]lo|solamente|[uú]nicamente|apenas|somente|soltanto|uniquement|seulement)\b|\bne répon\w+ pas\b|\bтолько\b|(?:仅|只)需?(?:输出|返回|回复|给出|回答)|不要(?:输出|解释|添加|回答)"
    r"|(?:のみ|だけ)を?(?:出力|返|回答|答)|만 (?:출력|반환|답)"
)

_ANSWERS = _re(
    r"(?<!to )\b(respond to|answer) the (user|question|query)|\A.{0,120}\bto (respond to|answer) the (user|question|query)|\b(assistant|ai)\W{0,3}:\s*\Z"
)
#: How the system prompt of a text function begins, and how a prompt that is a form begins.
_PART = rf"\A.{{0,400}}?(?:{_ROLE}|{_TASK}|{_ORDERED})|{_GIVEN}|{_ORDER}"
_OPENS = rf"\A.{{0,300}}?(?:{_ROLE}|{_TASK}|{_ORDERED})|{_GIVEN}|{_ORDER}"
#: A form of answer that only a program reads, or a very short one.
_BRIEF = (
    rf"{_STRICT}|\b(?:at most|no more than|under|maximum|short|concise|brief|characters|words|(?:set|list) of|conventional)\b"
    r"|\b(?:improved|alternative|rephrased|rewritten) (?:question|query|queries)\W*\Z"
    r"|\b(?:variants|versions|queries|keywords)\W*\Z"
)
#: An existing summary at the head of a conversation that continues.
_EXISTING_SUMMARY = _re(
    r"\A\W{0,12}(?:this (?:session|conversation|chat|task) (?:is |was |has been )?(?:being )?(?:continu|compact|summar|resum)\w+|(?:here|the following|below|this) is (?:a|the) (?:\w+ )?summary\b"
    r"|(?:conversation |context |session |chat )?(?:summary|compaction|hand-?off)\b(?! request| the| this| our)|(?:the )?(?:previous|earlier|prior) (?:conversation|messages|turns)\b"
    r"|another language model|(?:zusammenfassung|resumen|résumé|riassunto|resumo) (?:de|des|der|du|della|da)\b|以下是.{0,12}(?:摘要|总结)|之前的?(?:对话|会话))"
)
_CODE = re.compile(r"^[ \t]*(?:```|~~~)|</?(?:tool|function|invoke|execute)[\w:-]*[ >]", re.MULTILINE)
_HAS_TASK = _re(_TASK)
_QUESTION_ANSWERING = _re(
    r"\A.{0,200}\bquestion[- ]answering\b|\A\W*answer\b|\b(?:reply|respond) with an answer\b|\brespond (?:naturally|helpfully)\b|\bwhen (?:the|a) user (?:sends|asks|says)\b"
    r"|\A.{0,300}\b(?:you (?:are [^.\n]{0,60}\b(?:that|who) |will |should |must |can )?|your (?:task|job|goal|role) is to (?:\w+ ){0,3})answers?\b"
)
_MERGES = _re(r"\b(synthesi[sz]|merg|fus(e|ion)|combin)\w*")
_CONTAINER = re.compile(r"<(chat_?history|conversation|transcript|messages|dialogue?)\b[^>]*>", re.IGNORECASE)
_ANSWER_IT = _re(r"\b(respond to|answer) the (user|question|query)|\b(assistant|ai)\W{0,3}:\s*\Z")
_GREETING = _re(r"\A\W*(ping|test|testing|hi|hello|hey)\W*\Z")
_WARM_UP = _re(r"\A\W*warm-?ups?\W*\Z")
_MACHINE = re.compile(r"\A\s*\[(?:system|automated|automatic|internal)\b[^\]]*(?:\]\s*\Z|\Z)", re.IGNORECASE)
_TOKEN_ONLY = re.compile(r"\A\W{0,4}(?:[A-Z]{2,}(?:_[A-Z]+)+|(?<=\[)[A-Z]{4,}(?=\]))\W{0,4}\Z")
_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,2}[.)]|#{1,4}) ?\S", re.MULTILINE)
_DIFF = re.compile(r"^(diff --git|@@ |\+\+\+ )", re.MULTILINE)
_FILL_IN = re.compile(
    r"<\|?fim[_▁-]|<\|?(prefix|suffix|cursor)\|?>|<(PRE|SUF|MID|CURSOR|COMPLETION)>|\{\{FILL_HERE\}\}|^\W*PREFIX\W*$|\bPREFIX:.*\bSUFFIX:",
    re.DOTALL | re.MULTILINE,
)
_TOKEN = re.compile(
    r"\b[Ii]f (there is )?nothing\b.{0,80}\b(reply|respond|answer)( only| with)* `?[A-Z]+_[A-Z_]+\b",
    re.DOTALL,
)
_SILENT = re.compile(
    r"\b([Ii]f|[Ww]hen|[Oo]therwise)\b[^.\n]{0,80}?(\bnothing\b|\bnot\b|\bno\b|\bnone\b)?[^.\n]{0,60}?\b(reply|replies|respond|answer|say|output)( only| with| exactly)*[:]? (`?\[?[A-Z]{3,}(_[A-Z]+)*\]?`?(?![a-z])|['\"“][^'\"”\n]{3,40}['\"”][^\n]{0,12}\bstop\b)"
)


def _quotes_conversation(inputs: ClassifierInput) -> bool:
    """Whether a conversation stands in a container inside one message, and the user's question is not the request."""
    return bool(_CONTAINER.search(inputs.user_text)) and not _ANSWER_IT.search(inputs.request)


def _is_probe(inputs: ClassifierInput) -> bool:
    """Whether this is a liveness check: room for one token, or for a few after a bare greeting."""
    if inputs.answer_count:
        return False
    if _WARM_UP.match(inputs.request):
        return True
    if inputs.max_tokens is None:
        return False
    return inputs.max_tokens == 1 or (inputs.max_tokens <= 5 and bool(_GREETING.match(inputs.request)))


def _is_background_report(inputs: ClassifierInput) -> bool:
    announced = re.search(
        r"\b(background task|internal task|sub-?agent)\b.{0,40}\bcomplet",
        inputs.user_text[:_USER_TEXT_CHARS],
        re.IGNORECASE | re.DOTALL,
    )
    return bool(announced) and not inputs.request.strip()


def _is_only_dialogue(inputs: ClassifierInput) -> bool:
    """Whether the user message is only a written-out dialogue: the instruction stands elsewhere."""
    said, lines = inputs.dialogue_lines
    first = next((line for line in inputs.user_text[:400].splitlines() if line.strip()), "")
    starts = first.lstrip(_MARKUP)[:40].lower()
    begins = starts.startswith((*_PEOPLE, *_MODELS)) or inputs.user_text.lstrip()[:1] in "[{"
    return (
        said > 0
        and len(inputs.system) >= 120
        and (begins or lines <= said + 2)
        and not _awaits_next_line(inputs)
    )


def _is_form(inputs: ClassifierInput) -> bool:
    """Whether a form is filled in: a dialogue or at least two named fields."""
    if inputs.tools > 1 or (inputs.form_field_count < 2 and not inputs.dialogue_lines[0]):
        return False
    return not _ANSWERS.search(inputs.request) or bool(_HAS_TASK.search(inputs.request))


def _awaits_next_line(inputs: ClassifierInput) -> bool:
    """Whether a written-out dialogue ends where the model's line begins."""
    last = inputs.user_text.rstrip()[-60:].rpartition("\n")[2].lstrip(_MARKUP).lower()
    return last.startswith(_MODELS) and last.endswith((":", "："))


def _contains_dialogue(inputs: ClassifierInput) -> bool:
    return inputs.dialogue_lines[0] > 0 and not _awaits_next_line(inputs)


def _has_few_tools(inputs: ClassifierInput) -> bool:
    return inputs.tools <= 1


def _is_no_question(inputs: ClassifierInput) -> bool:
    return inputs.tools <= 1 and not _ANSWERS.search(inputs.request)


def _is_not_question_answering(inputs: ClassifierInput) -> bool:
    """Whether the system prompt does not ask for answers to questions."""
    return inputs.tools <= 1 and not _QUESTION_ANSWERING.search(inputs.system[:500])


def _is_long_request(inputs: ClassifierInput) -> bool:
    """Whether more text than a person writes precedes the diff."""
    shown = _DIFF.search(inputs.user_text[:8000])
    return shown is not None and shown.start() > 100


def _is_no_existing_summary(inputs: ClassifierInput) -> bool:
    """Whether the request does not begin with an existing summary."""
    return not _EXISTING_SUMMARY.match(inputs.request)


def _lists_requirements(inputs: ClassifierInput) -> bool:
    """Whether three or more list items describe the answer's content, as only programs write."""
    return len(_ITEM.findall(inputs.request)) >= 3 and _is_no_existing_summary(inputs)


def _contains_diff(inputs: ClassifierInput) -> bool:
    return bool(_DIFF.search(inputs.user_text[:_USER_TEXT_CHARS]))


_TITLES = "a name for the conversation, for the client's list"
_COMMIT = "a commit message for a change"
_FUNCTION = "a text function: the prompt defines what is done with its input, and the form of the result"
_FOLLOW = "suggestions for the user's next message"
_SEARCH = "a search query or a stand-alone question, for a retrieval step"
_SUMMARY = "the conversation shortened to fit the context"
_MEMORY = "what to remember about the user"
_CLOCK = "sent by a timer or a schedule, not by a person"

#: The rule table. Order only decides which reason is stored.
RULES: tuple[Rule, ...] = (
    # -- names and labels for a conversation
    Rule(reason="title", meaning=_TITLES, request=(_re(_TITLE_OF), _re(_FORM), _re(_MAKE)), is_opening=True),
    Rule(reason="title", meaning=_TITLES, request=(_near(_TITLE, _THE_TALK, 120), _re(_MAKE)), is_opening=True),
    Rule(reason="title", meaning=_TITLES, request=(_near(_TITLE, _THE_TALK, 80), _re(_FORM))),
    Rule(reason="title", meaning=_TITLES, request=(_re(r"\b(summari[sz]e|describe|name)\b.{0,60}\b(in|with|at) (most |at most )?\S{1,12} (words|characters)\b"), _near(rf"{_TITLE}|\bname\b", _A_TALK, 120))),
    Rule(reason="title", meaning=_TITLES, request=(_re(rf"\bname\b.{{0,30}}(?:{_A_TALK}|\bbelow\b).{{0,80}}\bwords\b"),), is_opening=True),
    Rule(reason="title", meaning=_TITLES, system=(_near(_TITLE, _A_TALK, 80), _re(_FORM)), condition=lambda v: v.answer_count <= 1),
    Rule(reason="title", meaning=_TITLES, system=(_re(rf"\b(description|name|label|summary) (of|for) (?:{_THE_TALK}).{{0,40}}\b{_COUNT}\b.{{0,12}}\b(words|characters)\b"),), is_opening=True),
    Rule(reason="title", meaning=_TITLES, request=(_re(rf"{_MAKE}.{{0,20}}\b(short|brief|concise|succinct)\b.{{0,20}}\b(names?|labels?)\b.{{0,20}}\b(of|for) (?:{_THE_TALK})"),)),
    Rule(reason="title", meaning=_TITLES, system=(_re(rf"\A.{{0,200}}{_MAKE}.{{0,20}}\b(short|brief|concise|succinct)\b.{{0,20}}\b(names?|labels?)\b.{{0,20}}\b(of|for) (?:{_THE_TALK})"),)),
    Rule(reason="title", meaning=_TITLES, request=(_re(rf"\b(description|name|label) (of|for) (?:{_THE_TALK}).{{0,40}}\b{_COUNT}\b.{{0,12}}\b(words|characters)\b"),)),
    Rule(reason="title", meaning=_TITLES, system=(_near(_TITLE, rf"\b{_COUNT}\b.{{0,8}}\bwords?\b|\b\d+[-– ](\d+|word)", 60), _re(_MAKE), _re(rf"{_ONLY_THIS}|\bno (quot|punct)")), is_opening=True),
    Rule(reason="title", meaning=_TITLES, system=(_re(rf"\bnam(e|es|ing)\b.{{0,24}}(?:{_A_TALK})"),), is_opening=True),
    Rule(reason="title", meaning=_TITLES, request=(_re(rf"\b(summari[sz]e|turn|condense|shorten)\b.{{0,60}}\b(question|query|message|prompt|request)\b.{{0,40}}(?:{_TITLE})"),), is_opening=True),
    Rule(reason="title", meaning=_TITLES, request=(_re(r"\b(chat|conversation|session|thread|dialogue) titles?\b|\btitle generator\b"), _re(_MAKE), _re(_FORM)), is_opening=True),
    Rule(reason="title", meaning=_TITLES, request=(_re(rf"\A.{{0,60}}(?:{_TITLE}).{{0,30}}?(?:{_THE_TALK}).{{0,60}}\Z"), _re(_MAKE))),
    Rule(reason="title", meaning=_TITLES, request=(_re(rf"\A.{{0,200}}?(?:{_TITLE})"), _re(rf"\b{_COUNT}\b.{{0,10}}\bwords?\b.{{0,40}}(?:{_TITLE})|(?:{_TITLE}).{{0,60}}\b{_COUNT}\b.{{0,10}}\bwords?\b"), _re(_ONLY_THIS), _re(r"\b(message|conversation|chat|query|prompt)\b|\A[^\n]{0,80}\btitle only\b")), is_opening=True),
    Rule(reason="title", meaning=_TITLES, system=(_re(rf"\A.{{0,240}}?(?:{_TITLE})"),), system_ends=(_re(_BRIEF),), is_opening=True, condition=_has_few_tools),
    Rule(reason="slug", meaning="a file or branch name for the conversation", request=(_re(rf"{_MAKE}.{{0,60}}\b(slug|file ?name|branch name)\b.{{0,200}}\b(hyphen|kebab|only|extension|lowercase)"), _re(rf"{_STRICT}|{_A_TALK}|\bno (file )?extension\b|\A.{{0,40}}\bslug\b"))),
    Rule(reason="title", meaning=_TITLES, request=(_re(r"\A\W*you are [^.\n]{0,60}\b(title generator|titling)\b"),), is_opening=True),
    Rule(reason="tags", meaning="labels for the conversation", request=(_re(rf"{_MAKE}.{{0,40}}({_TAGS})"), _near(_TAGS, _A_TALK, 120)), is_opening=True),
    Rule(reason="emoji", meaning="an emoji for a message", request=(_re(r"\b(fitting|single|suitable|appropriate|one) emoji\b.{0,200}\bmessage\b"),), is_opening=True),
    Rule(reason="commit_message", meaning=_COMMIT, request=(_re(rf"{_MAKE}.{{0,60}}\b(commit messages?|pull request (title|description))\b|\bcommit messages?\b.{{0,80}}{_MAKE}"), _re(_BRIEF)), is_opening=True, condition=_contains_diff),
    Rule(reason="commit_message", meaning=_COMMIT, request=(_re(r"\bcommit messages?\b|\bpull request\b|\bbranch names?\b"),), is_opening=True, condition=_is_long_request),
    Rule(reason="commit_message", meaning=_COMMIT, system=(_re(r"\bcommit\w*( messages?)?\b"),), is_opening=True, condition=_contains_diff),
    # -- what the user may write or search next
    Rule(
        reason="follow_ups", meaning=_FOLLOW,
        request=(_re(r"\b(predict|suggest|generate|propose)\b.{0,60}\b(follow[- ]?ups?|questions|prompts|messages|replies)\b.{0,80}\b(user|next)\b"),),
        condition=lambda v: v.answer_count == 0 or bool(re.search(r"\b(json|list|array)\b", v.request, re.IGNORECASE)),
    ),
    Rule(reason="follow_ups", meaning=_FOLLOW, request=(_re(r"\b(generat|suggest|predict|propos|provid|creat)\w*\b.{0,80}\b(follow[- ]?ups?( \w+)?|suggestions|next (messages?|prompts?|questions?)|questions (that )?(the )?(user|human))\b"), _re(_BRIEF), _re(r"\b(user|human|assistant)('s)?\b")), condition=lambda v: v.answer_count == 0 or bool(re.search(r"\b(json|list|array)\b", v.request, re.IGNORECASE))),
    Rule(reason="follow_ups", meaning=_FOLLOW, request=(_re(r"\A.{0,80}\bsuggestion generator\b"),), is_opening=True),
    Rule(reason="follow_ups", meaning=_FOLLOW, system=(_re(r"\b(suggestion generator|(ask|suggest|identify|generat\w*|propos\w*|creat\w*) (\w+[- ]){0,4}(related|follow[- ]?up|next) questions|generat\w+ (\w+ ){0,3}suggestions)\b"),), is_opening=True, condition=_has_few_tools),
    Rule(reason="follow_ups", meaning=_FOLLOW, request=(_re(r"\bschlage?\b.{0,40}\bfragen\b.{0,60}\b(nutzer|nächste)|\b(propose|suggère)\w*\b.{0,40}\bquestions\b.{0,60}\b(suite|suivantes|utilisateur)|\bsugiere\b.{0,40}\bpreguntas\b|(推荐|建议|预测).{0,20}(问题|提问)"), _re(_FORM))),
    Rule(reason="search_queries", meaning=_SEARCH, request=(_re(r"\b(generat|formulat|determin|writ)\w*\b.{0,80}\bsearch quer(y|ies)\b"),), is_opening=True),
    Rule(reason="search_queries", meaning=_SEARCH, system=(_re(r"\b(formulate|rephrase|rewrite|condense|generate|create)\b.{0,120}\b(standalone|stand-alone|search) (question|quer)"),)),
    Rule(reason="search_queries", meaning=_SEARCH, request=(_re(r"\b(re-?phras\w*|re-?writ\w*|condens\w*|re-?formul\w*|riformul\w*|turn|(um)?formulier\w*|re(e)?scri\w+|переформул\w*|перепиши)\b|改写|重写|書き換え|言い換え|재구성"), _near(_STAND_ALONE, _QUERY, 160)), is_opening=True),
    Rule(reason="search_queries", meaning=_SEARCH, request=(_re(r"\b(generat|formulat|construct|creat|writ|expand|decompos|break|re-?phras|re-?writ|analy[sz])\w*\b.{0,100}\b((web|google|search|keyword|alternative|database|retrieval|sub|vector|improved|different)[- ](\w+[- ])?(quer(y|ies)|questions?|keywords?|versions?)|queries)\b"), _re(_BRIEF)), is_opening=True, condition=_is_form),
    Rule(reason="search_queries", meaning=_SEARCH, system=(_re(r"\b(re-?phras|re-?writ|reformulat|expand|generat|transform)\w*\b.{0,100}\b(quer(y|ies)|questions?)\b.{0,80}\b(search|retriev\w*|database|stand-?alone|self-contained|vector|knowledge)\b"),), condition=_has_few_tools),
    Rule(reason="search_queries", meaning=_SEARCH, system=(_re(r"\A.{0,200}\bgenerat\w*\b.{0,40}\b(search|web|google|keyword) quer(y|ies)\b"),), system_ends=(_re(_STRICT),), is_opening=True, condition=_has_few_tools),
    Rule(reason="search_queries", meaning=_SEARCH, request=(_re(r"\A.{0,120}\b(generat|formulat|construct|creat|writ|expand|decompos|re-?phras|re-?writ|improv)\w*\b.{0,100}\b(quer(y|ies)|questions?)\b"), _re(r"\b(provided|user'?s?|original|given|following|input|initial) (\w+ )?(query|question)s?\b"), _re(_BRIEF)), is_opening=True),
    Rule(reason="prompt_rewrite", meaning="rewrites the user's prompt before it is sent", request=(_re(r"\A.{0,160}\b(enhanc|improv|optimi[sz]|refin|re-?writ)\w*\b.{0,60}\bprompt\b"), _re(rf"{_ONLY_THIS}|\b(reply|respond|return|output)( with)? only\b")), is_opening=True),
    Rule(reason="prompt_rewrite", meaning="rewrites the user's prompt before it is sent", system=(_re(r"\A.{0,200}\b(enhanc|improv|optimi[sz]|refin|re-?writ)\w*\b.{0,60}\b(prompt|draft)\b|\A.{0,120}\bprompt (optimi[sz]|enhanc|improv|engineer)\w*"),), system_ends=(_re(rf"{_ONLY_THIS}|\b(reply|respond|return|output)( with)? only\b"),), is_opening=True, condition=_has_few_tools),
    Rule(reason="translation", meaning="a page or a field translated in place", system=(_re(r"\A.{0,160}(?<!or )(?<!not )\btranslat(e|es|or|ion|ing)\b"),), system_ends=(_re(r"\b(only|directly|without)\b.{0,60}\b(translat\w+|explanation|additional|result)\b"),), is_opening=True, condition=_has_few_tools),
    Rule(reason="translation", meaning="a page or a field translated in place", request=(_re(r"\A.{0,200}\btranslat(e|es|or|ion|ing)\b"), _re(r"\b(only|directly|without)\b.{0,60}\b(translat\w+|explanation|additional|result)\b")), is_opening=True, condition=_is_form),
    Rule(reason="autocomplete", meaning="text at the cursor", system=(_re(r"\b(tab|auto)-?complet\w*\b.{0,60}\b(prompt|text|code|message|query|user)\b|\bnext[- ]edit\b|\bpredict\w*\b.{0,40}\b(next edit|completion)\b"),), is_opening=True),
    Rule(reason="autocomplete", meaning="text at the cursor", request=(_re(r"\bauto-?complet(e|ion)\b.{0,40}\b(system|engine|assistant|task)\b"),), is_opening=True),
    Rule(reason="autocomplete", meaning="text at the cursor", system=(_re(r"\b(auto-?complet(e|ion)|code completion|fill[- ]in[- ]the[- ]middle)\b.{0,40}\b(system|engine|assistant|model|ai)\b"),), is_opening=True),
    Rule(reason="autocomplete", meaning="text at the cursor", system=(_re(r"\bcomplet\w*\b.{0,60}\b(cursor|prefix|middle)\b"),), is_opening=True),
    Rule(reason="autocomplete", meaning="text at the cursor", is_opening=True, condition=lambda v: bool(_FILL_IN.search(v.user_text[:8000]))),
    Rule(reason="apply_edit", meaning="an edit merged into a file by machine", request=(_re(r"\b(merge|apply|integrate)\b.{0,60}\b(snippet|edits?|changes?|update|code)\b.{0,40}\b(in)?to\b.{0,30}\b(file|document|code)\b"), _re(_FORM)), is_opening=True),
    # -- keeping the context small
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(rf"(?:{_SUM_UP}).{{0,60}}?(?:{_THE_TALK})"),), is_opening=True),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(_SUM_UP), _re(rf"(?:{_THE_TALK}|これまで|앞선|\b(discussed|our work|progress|everything|so far|facts and events)\b)"), _near(_SUM_UP, _FOR_LATER, 300)), condition=_is_no_existing_summary),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(r"(?<![A-Za-z])context\b.{0,20}\b(compaction|compression)|\bcompact(ing|ion of) the (context|history)\b"), _re(r"\b(perform\w*|handoff|hand-over|continue|resume|required)\b|交接|继续|正在"))),
    Rule(reason="summary", meaning=_SUMMARY, request=(_near(_SUM_UP, _THE_TALK, 80), _re(rf"{_ONLY_THIS}|\bpreserv(e|ing)\b")), is_opening=False),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(r"\bcontext (window|limit|length|compression|compaction|overflow)\b"), _re(rf"{_SUM_UP}|\bsave memor"), _re(r"\b(must|required|before continuing)\b"))),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(r"\b(write|put|set) down\b|\b(provide|create|produce|write|generate)\b.{0,40}\b(prompt|notes?|brief\w*|account|record|overview)\b"), _re(r"\b(a|an|the) (fresh|new|next|another|later|different) (agent|assistant|session|instance|chat|context|model)\b|\bcontinuing (our|the|this) conversation\b")), is_opening=False),
    Rule(reason="summary", meaning=_SUMMARY, system=(_re(r"\b(summari[sz]ation|summari[sz]ing|compaction) (assistant|agent|engine|system|component|task|expert)\b"),)),
    Rule(reason="summary", meaning=_SUMMARY, system=(_re(rf"\A.{{0,160}}?(?:{_TO_SUM_UP}).{{0,80}}?(?:{_A_TALK})"),)),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(r"\bextract\b.{0,80}\b(context|facts)\b.{0,80}\bconversation\b"),), is_opening=True),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(_SUM_UP), _re(_THE_TALK)), is_opening=False, condition=_lists_requirements),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(_SUM_UP), _re(rf"(?:{_THE_TALK}|\b(messages|conversation|exchange) above\b).{{0,40}}[:：]\s*\Z")), is_opening=False),
    Rule(reason="summary", meaning=_SUMMARY, request=(_re(rf"\A.{{0,120}}?(?:{_SUM_UP}).{{0,60}}?\b(tool|function|command|terminal|reasoning|thinking|scraped|page)\b( (output|result|response|content|steps)s?)?\b"), _re(_BRIEF)), is_opening=True),
    Rule(reason="summary", meaning=_SUMMARY, system=(_re(rf"\A.{{0,400}}?(?:{_TO_SUM_UP}|\b(maintain|updat|keep|compact|creat)\w*\b.{{0,60}}\b(summary|(portion|part) of)\b|\bsummari[sz]ation request\b)"), _re(rf"\A.{{0,500}}?(?:{_A_TALK}|\b(actions|information results)\b|\b(provided|following) text\b)"), _re(_PART)), condition=_is_not_question_answering),
    # -- memory
    Rule(reason="memory", meaning=_MEMORY, system=(_re(_PART), _re(r"\A.{0,400}?\b(memor(y|ies)|learnings?|knowledge|facts|profile|preferences)\b"), _re(rf"\b(about|of) (the|this|a) (user|person|human)\b|\busers?'|\bfrom (the )?(?:{_A_TALK})")), is_opening=True, condition=_has_few_tools),
    Rule(reason="memory", meaning=_MEMORY, request=(_re(r"\b(memory (flush|extraction|consolidation|update task|checkpoint)|durable memor|managed memory)\b"),)),
    Rule(reason="memory", meaning=_MEMORY, system=(_re(r"\bmemory[- ](extraction|consolidation|manager|curator|update|writer|agent|assistant)\b|\A.{0,60}\bconsolidat\w+ memor|\A.{0,80}\borgani[sz]es? personal information\b"),)),
    Rule(reason="memory", meaning=_MEMORY, request=(_re(rf"\b(extract|identify|review)\b.{{0,100}}\b(memor(y|ies)|facts|preferences|learnings)\b.{{0,100}}(?:{_A_TALK})"),), is_opening=True),
    Rule(reason="memory", meaning=_MEMORY, request=(_re(rf"\b(review|look (back )?(at|over|through)|go over|reflect on|analy[sz]e)\b.{{0,40}}(?:{_THE_TALK})"), _re(r"\b(save|update|store|memor\w+|skills?|remember|worth keeping)\b"))),
    Rule(reason="memory", meaning=_MEMORY, request=(_re(rf"\b(review|reflect on|analy[sz]e)\b.{{0,40}}(?:{_THE_TALK})"), _re(r"\b(extract\w*|json)\b")), is_opening=False),
    Rule(reason="memory", meaning=_MEMORY, request=(_re(r"\bmemory manager\b|\bcontrols? the memory\b"),), is_opening=True),
    Rule(reason="memory", meaning=_MEMORY, request=(_re(r"(审查|回顾|审视|複習|分析).{0,12}(对话|会话|對話|聊天).{0,40}(记忆|保存|技能|記憶)"),)),
    Rule(reason="aside", meaning="the client interrupts the role-play", request=(_re(r"\bpause the role-?play\b"),)),
    # -- timers and machines
    Rule(reason="machine_message", meaning="a program's message in the user's role", condition=lambda v: bool(_MACHINE.match(v.user_text))),
    Rule(reason="heartbeat", meaning=_CLOCK, request=(re.compile(r"\bHEARTBEAT(_OK|\.md)?\b|\b[Hh]eartbeat (poll|prompt|tick|turn|wake|monitor)|(?<![a-z] )\b[Hh]eartbeat check"),)),
    Rule(reason="heartbeat", meaning=_CLOCK, request=(_re(r"\A.{0,120}\b(execut|perform|run|process)\w* (the |your |all )?(periodic|heartbeat)\b"),)),
    Rule(reason="heartbeat", meaning=_CLOCK, request=(_TOKEN,)),
    Rule(reason="heartbeat", meaning=_CLOCK, request=(_SILENT,)),
    Rule(reason="heartbeat", meaning=_CLOCK, condition=lambda v: v.has_machine_event),
    Rule(reason="cron", meaning=_CLOCK, request=(_re(r"\A\W{0,4}\[?(cron(:|\b.{0,40}\b(job|run))|scheduled (task|job|run|reminder)\b)|\A.{0,120}\b(as a|by a|this is a) ((scheduled|cron) )+(job|task|run)\b|\A.{0,200}\b(nobody|no one|no user|no human|no person) is (present|here|watching|available)"),)),
    Rule(reason="subagent", meaning="the work of an agent's sub-agent", request=(_re(r"\A.{0,200}(\[subagent\b|\bsub-?agent (context|task|run)\b|you are (running as )?a sub-?agent\b)"),)),
    Rule(reason="subagent", meaning="the work of an agent's sub-agent", system=(_re(r"\A.{0,120}\byou are (\w+ ){0,6}sub-?agent\b"),)),
    Rule(reason="announce", meaning="a background job reports", request=(_re(r"\b(background (task|process|job)|sub-?agent)\b.{0,60}\b(completed|finished|ended|failed)\b.{0,300}\b(internal|deliver|announce|result)"),)),
    Rule(reason="announce", meaning="a background job reports", condition=_is_background_report),
    Rule(reason="probe", meaning="a liveness check", condition=_is_probe),
    # -- agents among themselves
    Rule(reason="speaker_selection", meaning="selects the next speaker in a group of agents", request=(_re(_NEXT_SPEAKER), _re(rf"{_FORM}|\b(?:from|one of|options)\b.{{0,6}}\[|\bFINISH\b|\brespond with\b"))),
    Rule(reason="speaker_selection", meaning="selects the next speaker in a group of agents", system=(_re(_NEXT_SPEAKER), _re(rf"{_FORM}|\b(?:from|one of|options)\b.{{0,6}}\[|\bFINISH\b|\brespond with\b"))),
    Rule(reason="agent_to_agent", meaning="sent by another agent, not by the user", condition=lambda v: v.has_other_speaker),
    Rule(reason="guardrail", meaning="checks a message instead of answering it", system=(_re(r"\A\W{0,4}(you (check|decide|detect|classify|judge)|check|decide|determine|detect|classify|judge|evaluate|assess|flag)\b.{0,80}\b(if|whether|for)\b"),), condition=lambda v: v.is_structured),
    Rule(reason="guardrail", meaning="checks a message instead of answering it", request=(_re(r"\b(safe|unsafe|harmful|policy|policies|violat\w+|jailbreak\w*|appropriate)\b"), _re(r"\b(determin|decid|check|classif|assess|detect)\w*\b.{0,80}\b(if|whether|unsafe|safety|safe)\b"), _re(r"\b(yes|true|safe)\b.{0,4}\b(or|/|and)\b.{0,4}\b(no|false|unsafe)\b|\b(respond|answer|reply) with\b|\(yes/no\)|\byes\W+no\b")), is_opening=True),
    Rule(reason="judge", meaning="checks a message instead of answering it", system=(_re(r"\byou are an? (\w+ ){0,3}(judge|evaluator|grader|critic|reviewer of (answers|responses))\b"),)),
    Rule(reason="judge", meaning="checks a message instead of answering it", request=(_re(r"\b(rate|score|grade|evaluate|compare)\b.{0,60}\b(the )?(assistant'?s?|model'?s?|ai'?s?)\b.{0,20}\b(response|answer|reply|output)"),), is_opening=True),
    Rule(reason="judge", meaning="checks a message instead of answering it", request=(_re(r"\b(scor|rat|grad|evaluat|assess|judg|determin|classif|verif|decid|check|compar|attribut)\w*\b.{0,160}\b(relevan\w+|response|answers?|outputs?|statements?|claims?|documents?|passages?|context|sentences?|trace|hallucinat\w+|faithful\w*|groundedness|safe(ty)?|complian\w+|compl(y|ies))\b"), _re(_STRICT)), is_opening=True, condition=_is_form),
    Rule(reason="judge", meaning="checks a message instead of answering it", request=(_re(r"\A.{0,200}\b(analy[sz]e|score|rate|grade|classify|rank|assess)\b.{0,60}\brelevan(ce|t)\b.{0,80}\b(query|question|document)"),), is_opening=True, condition=_is_form),
    Rule(reason="planning", meaning="an agent plans before it acts", request=(_re(r"\bfacts survey\b|\bsurvey of (the )?facts\b"),)),
    Rule(reason="merge", meaning="several answers made into one", request=(_re(r"\bsynthesi[sz]e\b.{0,60}\bresponses\b.{0,60}\bsingle\b|\bset of responses from (various|several|multiple) models\b"),), is_opening=True),
    Rule(reason="merge", meaning="several answers made into one", request=(_re(r"\b(synthesi[sz]e|merge|merging|combine|combining|unify|identify)\b.{0,120}\b(responses?|answers|texts|summaries|alternatives|inputs)\b.{0,80}\b(above|provided|into|single|one)\b|\b\d+ responses provided\b|\bresponses? (alternatives|provided)\b"), _re(r"\b(coheren\w+|unified|concise|single|insights|key)\b")), condition=lambda v: bool(_MERGES.search(v.system)) or v.answer_count == 0),
    Rule(reason="structured_one_off", meaning="one question whose answer only a program reads", is_opening=True, condition=lambda v: v.is_structured),
    Rule(reason="structured_one_off", meaning="one question whose answer only a program reads", is_opening=True, system=(_re(r"\bcall the \S{0,30} ?tool\b|\bcall \S{3,40} (with|to)\b"),), condition=lambda v: v.tools == 1),
    # -- other requests that work on a conversation instead of continuing it
    Rule(reason="quoted_conversation", meaning="works on a conversation instead of continuing it", is_opening=True, condition=_quotes_conversation),
    Rule(reason="quoted_conversation", meaning="works on a conversation instead of continuing it", is_opening=True, condition=_is_only_dialogue),
    Rule(reason="quoted_conversation", meaning="works on a conversation instead of continuing it", is_opening=True, request=(_re(_STRICT),), condition=_contains_dialogue),
    Rule(reason="quoted_conversation", meaning="works on a conversation instead of continuing it", is_opening=True, request=(_re(_OPENS),), condition=_contains_dialogue),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=True, system=(_re(_PART),), system_ends=(_re(_STRICT),), condition=_is_not_question_answering),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=True, system_ends=(_re(_NOT_ANSWERED),), condition=_has_few_tools),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=True, request=(_re(_OPENS), _re(_STRICT)), condition=_is_form),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=True, request=(_re(rf"\A.{{0,500}}?(?:{_THIRD_PERSON})"), _re(_OPENS)), condition=_is_no_question),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=True, request=(_re(rf"\A.{{0,500}}?(?:{_THIRD_PERSON})"), _re(r"\A.{0,400}?\b(?:generat|suggest|list|propos|construct)\w*\b")), condition=_is_no_question),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=False, system=(_re(_PART),), system_ends=(_re(_NOT_ANSWERED),), condition=_has_few_tools),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=True, system=(_re(_PART),), condition=_is_form),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=False, request=(_re(rf"\A\W{{0,4}}you(?:'re| are) (?=.{{0,200}}(?:{_TASK}))"), _re(rf"\A.{{0,200}}?(?:{_ROLE})"))),
    Rule(reason="text_function", meaning=_FUNCTION, is_opening=False, request=(_re(rf"\A.{{0,60}}?(?:{_TASK})"), _re(rf"\A.{{0,500}}?(?:{_THIRD_PERSON})"))),
    Rule(reason="memory", meaning=_MEMORY, is_opening=False, system=(_re(rf"\A.{{0,300}}?\byour (?:job|task|role) is to (?:\w+ ){{0,3}}?(?:{_PROCESS}|look|review|read|inspect|study)\b[^.\n]{{0,60}}?\b(?:conversation|session|transcript|chat|dialogue)\b"),)),
    Rule(reason="closing_instruction", meaning="only the client's instruction follows the last reply", is_opening=False, condition=lambda v: bool(v.trailing_system) and not v.is_tool_output),
)  # fmt: skip

#: reason code -> meaning, for display.
MEANINGS: Mapping[str, str] = {
    **{rule.reason: rule.meaning for rule in reversed(RULES)},
    "conversation": "no rule matches",
    "guardrail": "checks a message instead of answering it",
    "silent_reply": "the reply is a token that only a program reads",
    "works_on_recorded_exchange": "it quotes a recorded question with its answer and does not wait for the next line",
    "side_tool_results": "only tool results follow a side turn",
    "client_header": "the client named the kind (X-Turn-Type)",
}


class RulePrefilter:
    """Skips the rules of a table that cannot hold, because literals are missing that their patterns require (`regex_prefilter`).

    Trying all rules on each request was the most expensive part of recording it, and few of them can hold.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._filters = {
            is_opening: _RuleFilter([rule for rule in rules if rule.is_opening in (None, is_opening)])
            for is_opening in (True, False)
        }

    def candidates(self, inputs: ClassifierInput) -> list[Rule]:
        """Return the rules that may hold, in table order."""
        return self._filters[inputs.answer_count == 0].candidates(inputs)


class _RuleFilter:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._always: list[int] = []
        self._by_request = LiteralIndex()
        self._by_system_start = LiteralIndex()
        self._by_system_ends = LiteralIndex()
        self._systems: OrderedDict[str, frozenset[int]] = OrderedDict()  # system prompts recur
        for position, rule in enumerate(self._rules):
            needs = [
                (need, self._by_request) for p in rule.request if (need := _required_literals(p)) is not None
            ]
            needs += [
                (need, self._by_system_start)
                for p in rule.system
                if (need := _required_literals(p)) is not None
            ]
            needs += [
                (need, self._by_system_ends)
                for p in rule.system_ends
                if (need := _required_literals(p)) is not None
            ]
            if needs:
                pieces, index = min(needs, key=lambda entry: len(entry[0]))
                for piece in pieces:
                    index.setdefault(piece, []).append(position)
            else:
                self._always.append(position)

    def candidates(self, inputs: ClassifierInput) -> list[Rule]:
        found = set(self._always)
        if inputs.request:
            found.update(self._by_request.find(inputs.request))
        if inputs.system:
            found.update(self._system_candidates(inputs))
        return [self._rules[position] for position in sorted(found)]

    def _system_candidates(self, inputs: ClassifierInput) -> frozenset[int]:
        known = self._systems.get(inputs.system_ends)
        if known is None:
            known = frozenset(
                self._by_system_start.find(inputs.system) | self._by_system_ends.find(inputs.system_ends)
            )
            self._systems[inputs.system_ends] = known
            if len(self._systems) > 256:
                self._systems.popitem(last=False)
        return known


_required_literals = cache(required_literals)


_PREFILTER = RulePrefilter(RULES)


def build_classifier_input(messages: Sequence[Message], request: Mapping[str, Any]) -> ClassifierInput:
    """Return the input of the rules for a request; ``request`` is its body, with or without messages."""
    answered = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    newest = messages[answered[-1] + 1 :] if answered else messages
    user_messages = [m for m in newest if m.get("role") == "user"]
    texts = [content_text(m.get("content")) for m in user_messages]
    request_texts = (
        texts[1:] if len(texts) > 1 and _EXISTING_SUMMARY.match(texts[0]) else texts
    )  # an existing summary precedes the request
    words = "\n".join(text for text in map(strip_client_context, request_texts) if text)
    system = "\n".join(
        content_text(m.get("content")) for m in messages[:8] if m.get("role") in ("system", "developer")
    )
    trailing_system = ""
    if answered and newest and all(m.get("role") in ("system", "developer") for m in newest):
        trailing_system = "\n".join(content_text(m.get("content")) for m in newest)
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    tools = request.get("tools")
    user_text = "\n".join(texts)
    return ClassifierInput(
        user_text=user_text,
        request=_ends(words or trailing_system),
        system=system[:_HEAD_CHARS],
        system_ends=_ends(system, 1500, 900),
        trailing_system=trailing_system,
        answer_count=len(answered),
        is_structured=is_structured(request),
        tools=len(tools) if isinstance(tools, list) else 0,
        max_tokens=limit if isinstance(limit, int) else None,
        has_machine_event=bool(texts) and is_machine_event(texts[-1]),
        has_other_speaker=_is_other(messages, user_messages),
        is_tool_output=bool(trailing_system) and _is_output(messages, answered),
        dialogue_lines=_written_out(user_text) if not answered else (0, 0),
        form_field_count=_slots(user_text) if not answered else 0,
    )


def _ends(words: str, head: int = _HEAD_CHARS, tail: int = _TAIL_CHARS) -> str:
    return words if len(words) <= head + tail else f"{words[:head]}\n…\n{words[-tail:]}"


def _lines_of(text: str) -> list[str]:
    """Return the lines of a text's beginning and end in lower case, without leading mark-up."""
    if len(text) > 2 * _FORM_CHARS:
        text = f"{text[:_FORM_CHARS]}\n{text[-_FORM_CHARS:]}"
    return [line.lstrip(_MARKUP)[:40].lower() for line in text.splitlines() if line.strip()]


def _written_out(text: str) -> tuple[int, int]:
    """Return (lines of a user or an assistant in a written-out dialogue, all lines); 0 unless both occur."""
    if "\n" not in text and '"role"' not in text and "'role'" not in text:
        return 0, 1
    if "role" in text and _PACKED_USER.search(text) and _PACKED_MODEL.search(text):
        return 2, 2
    lines = _lines_of(text)
    people = models = 0
    for line in lines:
        if line.startswith(_PEOPLE) and _SPEAKS.match(line):
            people += 1
        elif line.startswith(_MODELS) and _SPEAKS.match(line):
            models += 1
    return (people + models if people and models else 0), len(lines)


def _slots(text: str) -> int:
    """Return the number of form fields in a text: lines such as "Query: …", "### Context", "<document>", "[Input]"."""
    if "\n" not in text:
        return 0
    if len(text) > 2 * _FORM_CHARS:
        text = f"{text[:_FORM_CHARS]}\n{text[-_FORM_CHARS:]}"
    return sum(1 for line in text.splitlines() if _SLOT.match(line))


def _is_output(messages: Sequence[Message], answered: Sequence[int]) -> bool:
    """Whether a system message after the last reply is tool output: earlier replies had such messages too, or there is code to run.

    Some agents send tool results as system messages. A client's own instructions are not kept in the history.
    """
    for one, other in pairwise(answered):
        between = messages[one + 1 : other]
        if between and all(m.get("role") in ("system", "developer") for m in between):
            return True
    last = content_text(messages[answered[-1]].get("content"))
    return bool(_CODE.search(last[-2000:]))


def _is_other(messages: Sequence[Message], newest: Sequence[Message]) -> bool:
    """Whether the newest user message has another name than the first."""
    first = next((m.get("name") for m in messages if m.get("role") == "user"), None)
    last = newest[-1].get("name") if newest else None
    return isinstance(first, str) and isinstance(last, str) and first != last


def is_silent_reply(completion: Completion) -> bool:
    """Whether a reply is one token that only a program reads: NO_REPLY, HEARTBEAT_OK, [SILENT]."""
    return not completion.tool_calls and bool(_TOKEN_ONLY.match(strip_reasoning(completion.text)))


def is_structured(request: Mapping[str, Any]) -> bool:
    """Whether the reply must follow a JSON schema or call one given function."""
    response_format = request.get("response_format")
    if isinstance(response_format, Mapping) and response_format.get("type") in ("json_schema", "json_object"):
        return True
    choice = request.get("tool_choice")
    tools = request.get("tools")
    return isinstance(choice, Mapping) or (
        choice == "required" and isinstance(tools, list) and len(tools) == 1
    )


def classify(
    messages: Sequence[Message], request: Mapping[str, Any], rules: Sequence[Rule] = RULES
) -> Classification:
    """Return main or side with the reason code; plain chat is main."""
    rule = first_rule(messages, request, rules)
    if rule is None:
        return Classification(kind=TurnKind.MAIN, reason="conversation")
    return Classification(kind=TurnKind.SIDE, reason=rule.reason)


def first_rule(
    messages: Sequence[Message], request: Mapping[str, Any], rules: Sequence[Rule] = RULES
) -> Rule | None:
    """Return the first rule of the table that holds, or None."""
    inputs = build_classifier_input(messages, request)
    prefilter = _PREFILTER if rules is RULES else RulePrefilter(rules)
    return next((rule for rule in prefilter.candidates(inputs) if rule.holds(inputs)), None)


def classify_request(
    messages: Sequence[Message],
    request: Mapping[str, Any],
    requested: TurnKind | None,
    rules: Sequence[Rule] = RULES,
) -> Classification:
    """Return the kind that the client set (`wire.headers.RequestOptions.kind`), otherwise the result of the rules."""
    if requested is not None:
        return Classification(kind=requested, reason="client_header")
    return classify(messages, request, rules)


def find_evidence(messages: Sequence[Message], request: Mapping[str, Any]) -> list[str]:
    """Return the text that the first matching rule found, with its place."""
    rule = first_rule(messages, request)
    if rule is None:
        return []
    inputs = build_classifier_input(messages, request)
    found = []
    for patterns, place, text in (
        (rule.request, "the request", inputs.request),
        (rule.system, "the system prompt", inputs.system),
        (rule.system_ends, "the system prompt", inputs.system_ends),
    ):
        for pattern in patterns:
            match = pattern.search(text)
            if match is not None:
                words = " ".join(match[0].split())
                found.append(f"{place} contains “{words[:120]}{'…' if len(words) > 120 else ''}”")
    return found or [rule.meaning]
