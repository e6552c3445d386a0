"""Main or side: does the person (or their agent) speak, or is it the client's housekeeping? Sans-IO.

Rules are data: one table, each with the reason it gives and what it means. Neither the presence of tools nor streaming nor a
short prompt tells anything (all were seen on both sides), so the rules read *what is asked*: a chore's object (a title, a summary
for later, facts to keep), that it is about the conversation itself, and the form that a machine wants its answer in. Each is
said in several languages. They look at the beginning and the end of the newest user messages: the middle may quote a whole
conversation, and what is quoted was not asked.

Explicit headers win over everything here (`proxy.ours`). What only the record can tell (a request that quotes recorded turns, one
agent that hears another) is decided by `proxy.linking`, and what no rule knows is main until then: it is trained on only when
something follows it, and nothing follows a chore.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from proxy.literals import needed
from proxy.words import content_text, is_machine_event, own_words, spoken
from store.values import Completion, TurnKind

Message = Mapping[str, Any]

#: How much of a text's beginning and end is taken as the request itself.
_HEAD, _TAIL = 900, 500
#: Of the words since the last answer, as much of the beginning is looked at where a rule reads them as sent.
_SENT = 2000


class _Known:
    """What was found in the texts looked at last, by the pattern's id (it is kept, so that no other gets its id); bounded."""

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


_KNOWN = _Known()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the rules may look at.

    Attributes:
        asked: the newest user messages (since the last answer), as sent.
        request: beginning and end of their words, machine context apart.
        system: beginning of the leading system messages.
        system_ends: their beginning and end, where the form of the answer is prescribed.
        closing: a system message behind everything else, where nobody has spoken since the last answer.
        answers: number of assistant messages in the history.
        is_structured: the reply must follow a given JSON schema or call one given function.
        tools: number of tools offered.
        max_tokens: the client's limit, if it set one.
        is_event: the newest message is a machine's: an envelope without a person's words.
        other_speaker: the newest user message bears another name than the first.
        is_output: what ``closing`` says is the output of code or of a tool that the last answer called in its text.
        written_out: lines of a dialogue between a user and an assistant that stand inside one user message, and all its lines.
        slots: fields of a filled form in the newest user messages: "Query: …", "### Context", <document>.
    """

    asked: str
    request: str
    system: str
    system_ends: str
    closing: str
    answers: int
    is_structured: bool
    tools: int
    max_tokens: int | None
    is_event: bool
    other_speaker: bool
    is_output: bool
    written_out: tuple[int, int]
    slots: int

    def finds(self, pattern: re.Pattern[str], text: str) -> bool:
        """Whether a pattern is found in one of this view's texts; several rules ask for the same, and system prompts come again."""
        known = _KNOWN.of(text)
        found = known.get(id(pattern))
        if found is None:
            found = known[id(pattern)] = pattern.search(text) is not None, pattern
        return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    kind: TurnKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A chore: it holds when every given part does.

    Attributes:
        reason: recorded with the turn.
        means: what `explain` says.
        asks: patterns that must all be found in the request.
        system: patterns that must all be found in the beginning of the system prompt.
        form: patterns that must all be found in its beginning or end.
        fresh: the history holds no answer yet (True), holds one (False), or either (None).
        when: any further condition.
    """

    reason: str
    means: str
    asks: tuple[re.Pattern[str], ...] = ()
    system: tuple[re.Pattern[str], ...] = ()
    form: tuple[re.Pattern[str], ...] = ()
    fresh: bool | None = None
    when: Callable[[View], bool] | None = None

    def holds(self, view: View) -> bool:
        if self.fresh is not None and self.fresh != (view.answers == 0):
            return False
        if self.when is not None and not self.when(view):
            return False
        return (
            all(view.finds(pattern, view.system) for pattern in self.system)
            and all(view.finds(pattern, view.request) for pattern in self.asks)
            and all(view.finds(pattern, view.system_ends) for pattern in self.form)
        )


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _near(one: str, other: str, within: int) -> re.Pattern[str]:
    """Return a pattern for two things in either order, at most ``within`` characters apart."""
    return _re(rf"(?:{one}).{{0,{within}}}?(?:{other})|(?:{other}).{{0,{within}}}?(?:{one})")


# ------------------------------------------------------------------------ words
# What chores are about, in the languages that clients speak. Whole words where a script has them.

_MAKE = r"\b(generat\w*|creat\w*|writ\w*|suggest\w*|provid\w*|giv\w*|propos\w*|come up with|produc\w*|return|pick|output\w*|name|erstell\w*|schreib\w*|gib|vergib|génér\w*|donne\w*|crea|genera|escrib\w*|scrivi)\b"
_A_TALK = (
    r"\b(conversations?|chats?|dialogs?|dialogues?|discussions?|sessions?|threads?|messages?|transcripts?|exchanges?)\b"
    r"|\b(gespräche?s?|unterhaltung(en)?|chat-?verlaufs?|verlaufs?|sitzung)\b|\b(échanges?|discussions?)\b"
    r"|\b(conversaci[oó]n(es)?|charla|diálogo)\b|\b(conversazion[ei]|dialogo)\b|\b(conversas?|bate-papo)\b|\bgesprek\b"
    r"|разговор|беседы|диалог|чат[ауе]?\b|对话|会话|聊天|對話|會話|会話|対話|チャット|대화|채팅"
)
#: The conversation at hand, not any.
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
#: An order to sum up; a text that begins with "Summary of our conversation:" is one already.
_TO_SUM_UP = (
    r"\b(summari[sz](e|es|ing)|condens(e|es|ing)|compress(es|ing)?|sum(s|ming)? up|extract(s|ing)? key)\b"
    r"|\b(create|produce|write|provide|generate)\b.{0,30}\bsummar(y|ies)\b|\bzusammenfassen\b|\bfasse?\b.{0,60}\bzusammen\b"
    r"|\brésum(e|er|ez)\b|\bresum(e|ir)\b|\briassum(i|ere)\b|(请|將|将|擅长|进行).{0,30}(总结|概括|压缩|總結)|要約して"
)
#: How machines say what their answer must look like.
_FORM = (
    r"\b(only|nothing else|alone|solely|exclusively|exactly|json|verbatim|go straight)\b|\bno (explanations?|quot\w+|preamble|punctuation|markdown|other text|prefix|full stop|emojis?)\b"
    r"|\bwithout (\w+ )?(quot\w+|explanation|punctuation|lead-in|preamble)|\b(at most|maximum|max\.?|up to|no more than)\b.{0,12}\b(words|characters|tokens)\b|\b(or|and) (less|fewer)\b"
    r"|\b\w+[- ]words?\b|\bdo not (explain|include|add|use|answer|respond)\b|\b(nur|ausschließlich|keine|höchstens|maximal)\b|\b(uniquement|seulement|maximum|sans)\b|\b(solo|s[oó]lo|solamente|soltanto|máximo)\b"
    r"|только|仅|只|不要|以内|以內|だけ|のみ|文字以内|만 "
)
_COUNT = r"(\d+|one|two|three|four|five|six|seven|eight|ten|a few)"
#: What a summary is for when the client wants it: the conversation goes on without its beginning.
_FOR_LATER = (
    r"\b(replac\w+|resum(e|ing)|continu\w+|carr(y|ies) on|pick(s|ing)? up|hand-? ?(off|over)|compact\w*|successor|overwrite|future context|future reference|context (window|limit|length)s?)\b"
    r"|\b(fresh|new|next|another|later|different|subsequent|future) (agent|assistant|context|session|conversation|task|instance|chat|model|llm)\b"
    r"|\b(old|earlier|previous|prior|removed|dropped)\b.{0,30}\bmessages\b|\bwill be (gone|lost|removed|dropped|discarded|deleted)\b|\bprompt for\b|\bout of context\b"
    r"|替代|取代|替换|后续|後續|继续|繼續|引き継|以降の会話|コンテキスト|이어서|컨텍스트"
    r"|\b(nächste[rn]?|anderer|neue[rn]?) (assistent|agent|kontext|sitzung)\b|\bweiterarbeit\w*|\bfort(setz|führ)\w*|\b(nuevo|novo|nouveau|nuovo) (contexto?|contexte|contesto)\b|\bcontinuar\b|\bretomar\b"
    r"|\b(poursuivre|reprendre)\b|\b(proseguire|riprendere)\b|\bпродолж\w+|\bнов\w+ контекст"
)
#: Only a program needs to be told so.
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

#: Who speaks in a dialogue that a program wrote out. People who paste a chat write names.
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
#: So much of a text's beginning and of its end is searched for dialogues and forms.
_SHEET = 6000

#: What programs have done with words. A person has these done as well, but does not say "Your task is to …" before it.
_PROCESS = (
    r"(?:analy[sz](?:e|es|ing)|extract\w*|identif\w+|determin\w+|classif\w+|categori[sz]\w+|summari[sz]\w*|compress\w*|compact\w*|condens\w*"
    r"|consolidat\w*|distil\w*|evaluat\w*|assess\w*|scor(?:e|ing)|rat(?:e|ing)|grad(?:e|ing)|judg\w+|detect\w*|decid\w+|re-?phras\w*|re-?writ\w*"
    r"|reformulat\w*|(?:re)?rank\w*|rout(?:e|ing)|select\w*|choos\w+|tag(?:ging)?|titl(?:e|ing)|nam(?:e|ing)|check\w*|verif\w+|maintain\w*|merg\w+"
    r"|curat\w+|predict\w*|compar\w+|convert\w*|synthesi[sz]\w*|process)"
)
#: A program's part: "You are a relevance scoring assistant", "You are the memory reflector".
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
#: A prompt that begins with an order about text.
_ORDER = r"\A\W{0,12}(?:(?:goal|task|role|objective|instructions?)\W{1,6})?(?:please |briefly |carefully )?(?:analy[sz]e|extract|identify|determine|classify|categori[sz]e|summari[sz]e|evaluate|assess|score|rate|grade|judge|detect|re-?phrase|re-?write|reformulate|compress|condense)\b"
#: A program speaks of the person as somebody else.
_THIRD_PERSON = r"\busers?(?:'s|’s|')? (?:\w+ )?(?:query|queries|message|input|question|request|intent|intention|prompt|utterance|memor(?:y|ies)|draft)\b|\b(?:conversation|dialogue?|exchange) between (?:a|the|an) (?:user|human)\b"
#: … and the answer is not for the person.
_NOT_ANSWERED = r"\b(?:do not|don't|never|not to) (?:try to |attempt to |directly )?(?:answer|respond to|reply to|execute|follow|complete|perform|solve|carry out) (?:it\b|them\b|the (?:message|question|query|request|task|prompt|draft|conversation|user'?s? (?:message|question|query|request|prompt)))|\brather than answer\w*\b|\bnot an instruction executor\b|\bnicht beantworten\b|\bbeantworte (?:sie|die frage) nicht\b|\bne répon\w+ pas\b|\bno respondas\b|\bnão responda\b|\bне отвечай\b|不要回答|回答しない"
#: An order about text in the middle of a prompt.
_ORDERED = r"(?:[.:\n]\s*)(?:classify|extract|summari[sz]e|identify|determine|rate|score|grade|rewrite|rephrase|label|categori[sz]e|evaluate|decide (?:if|whether)|detect|assess) (?:the|each|this|whether|all|any|if|how) "
#: An answer that only a program takes.
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
#: How the system prompt of a function of text begins, and how a prompt that is a form begins.
_PART = rf"\A.{{0,400}}?(?:{_ROLE}|{_TASK}|{_ORDERED})|{_GIVEN}|{_ORDER}"
_OPENS = rf"\A.{{0,300}}?(?:{_ROLE}|{_TASK}|{_ORDERED})|{_GIVEN}|{_ORDER}"
#: An answer that only a program takes, or a very short one.
_BRIEF = (
    rf"{_STRICT}|\b(?:at most|no more than|under|maximum|short|concise|brief|characters|words|(?:set|list) of|conventional)\b"
    r"|\b(?:improved|alternative|rephrased|rewritten) (?:question|query|queries)\W*\Z"
    r"|\b(?:variants|versions|queries|keywords)\W*\Z"
)
#: A summary that has been made, at the head of a conversation that goes on.
_TOLD = _re(
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


def _quotes_conversation(view: View) -> bool:
    """A conversation stands in a container inside one message, and the person's question is not what is to be answered."""
    return bool(_CONTAINER.search(view.asked)) and not _ANSWER_IT.search(view.request)


def _is_probe(view: View) -> bool:
    """Is anybody there: room for one token, or for a few after a bare greeting."""
    if view.answers:
        return False
    if _WARM_UP.match(view.request):
        return True
    if view.max_tokens is None:
        return False
    return view.max_tokens == 1 or (view.max_tokens <= 5 and bool(_GREETING.match(view.request)))


def _announces(view: View) -> bool:
    told = re.search(
        r"\b(background task|internal task|sub-?agent)\b.{0,40}\bcomplet",
        view.asked[:_SENT],
        re.IGNORECASE | re.DOTALL,
    )
    return bool(told) and not view.request.strip()


def _only_dialogue(view: View) -> bool:
    """The user message is a dialogue written out, and nothing besides: what is to be done with it stands elsewhere."""
    said, lines = view.written_out
    first = next((line for line in view.asked[:400].splitlines() if line.strip()), "")
    starts = first.lstrip(_MARKUP)[:40].lower()
    begins = starts.startswith((*_PEOPLE, *_MODELS)) or view.asked.lstrip()[:1] in "[{"
    return said > 0 and len(view.system) >= 120 and (begins or lines <= said + 2) and not _waits(view)


def _is_form(view: View) -> bool:
    """A form is filled in: a dialogue or at least two named fields."""
    if view.tools > 1 or (view.slots < 2 and not view.written_out[0]):
        return False
    return not _ANSWERS.search(view.request) or bool(_HAS_TASK.search(view.request))


def _waits(view: View) -> bool:
    """The next line is the model's: a dialogue written out that is being held."""
    last = view.asked.rstrip()[-60:].rpartition("\n")[2].lstrip(_MARKUP).lower()
    return last.startswith(_MODELS) and last.endswith((":", "："))


def _shows_dialogue(view: View) -> bool:
    return view.written_out[0] > 0 and not _waits(view)


def _has_few_tools(view: View) -> bool:
    return view.tools <= 1


def _wants_no_answer(view: View) -> bool:
    return view.tools <= 1 and not _ANSWERS.search(view.request)


def _is_no_answer(view: View) -> bool:
    """The system prompt does not ask for answers to questions."""
    return view.tools <= 1 and not _QUESTION_ANSWERING.search(view.system[:500])


def _is_long_request(view: View) -> bool:
    """Before the change itself stands more than a person writes."""
    shown = _DIFF.search(view.asked[:8000])
    return shown is not None and shown.start() > 100


def _is_not_told(view: View) -> bool:
    """It is no summary that has been made already."""
    return not _TOLD.match(view.request)


def _is_list_of_wishes(view: View) -> bool:
    """What the answer has to contain is told in three or more lines of a list: so only programs ask."""
    return len(_ITEM.findall(view.request)) >= 3 and _is_not_told(view)


def _shows_diff(view: View) -> bool:
    return bool(_DIFF.search(view.asked[:_SENT]))


_TITLES = "a name for the conversation, for the client's list"
_COMMIT = "a commit message for a change"
_FUNCTION = "a function of text: the prompt says what is to be done with what it is given, and which form the result has"
_FOLLOW = "what the person might say next, for buttons"
_SEARCH = "a search query or a stand-alone question, for a retrieval step"
_SUMMARY = "the conversation shortened, so that it fits"
_MEMORY = "what to remember about the person"
_CLOCK = "a clock or a schedule spoke, not a person"

#: The table. Order matters only for which reason is given.
RULES: tuple[Rule, ...] = (
    # -- names and labels for a conversation
    Rule(reason="title", means=_TITLES, asks=(_re(_TITLE_OF), _re(_FORM), _re(_MAKE)), fresh=True),
    Rule(reason="title", means=_TITLES, asks=(_near(_TITLE, _THE_TALK, 120), _re(_MAKE)), fresh=True),
    Rule(reason="title", means=_TITLES, asks=(_near(_TITLE, _THE_TALK, 80), _re(_FORM))),
    Rule(reason="title", means=_TITLES, asks=(_re(r"\b(summari[sz]e|describe|name)\b.{0,60}\b(in|with|at) (most |at most )?\S{1,12} (words|characters)\b"), _near(rf"{_TITLE}|\bname\b", _A_TALK, 120))),
    Rule(reason="title", means=_TITLES, asks=(_re(rf"\bname\b.{{0,30}}(?:{_A_TALK}|\bbelow\b).{{0,80}}\bwords\b"),), fresh=True),
    Rule(reason="title", means=_TITLES, system=(_near(_TITLE, _A_TALK, 80), _re(_FORM)), when=lambda v: v.answers <= 1),
    Rule(reason="title", means=_TITLES, system=(_re(rf"\b(description|name|label|summary) (of|for) (?:{_THE_TALK}).{{0,40}}\b{_COUNT}\b.{{0,12}}\b(words|characters)\b"),), fresh=True),
    Rule(reason="title", means=_TITLES, asks=(_re(rf"{_MAKE}.{{0,20}}\b(short|brief|concise|succinct)\b.{{0,20}}\b(names?|labels?)\b.{{0,20}}\b(of|for) (?:{_THE_TALK})"),)),
    Rule(reason="title", means=_TITLES, system=(_re(rf"\A.{{0,200}}{_MAKE}.{{0,20}}\b(short|brief|concise|succinct)\b.{{0,20}}\b(names?|labels?)\b.{{0,20}}\b(of|for) (?:{_THE_TALK})"),)),
    Rule(reason="title", means=_TITLES, asks=(_re(rf"\b(description|name|label) (of|for) (?:{_THE_TALK}).{{0,40}}\b{_COUNT}\b.{{0,12}}\b(words|characters)\b"),)),
    Rule(reason="title", means=_TITLES, system=(_near(_TITLE, rf"\b{_COUNT}\b.{{0,8}}\bwords?\b|\b\d+[-– ](\d+|word)", 60), _re(_MAKE), _re(rf"{_ONLY_THIS}|\bno (quot|punct)")), fresh=True),
    Rule(reason="title", means=_TITLES, system=(_re(rf"\bnam(e|es|ing)\b.{{0,24}}(?:{_A_TALK})"),), fresh=True),
    Rule(reason="title", means=_TITLES, asks=(_re(rf"\b(summari[sz]e|turn|condense|shorten)\b.{{0,60}}\b(question|query|message|prompt|request)\b.{{0,40}}(?:{_TITLE})"),), fresh=True),
    Rule(reason="title", means=_TITLES, asks=(_re(r"\b(chat|conversation|session|thread|dialogue) titles?\b|\btitle generator\b"), _re(_MAKE), _re(_FORM)), fresh=True),
    Rule(reason="title", means=_TITLES, asks=(_re(rf"\A.{{0,60}}(?:{_TITLE}).{{0,30}}?(?:{_THE_TALK}).{{0,60}}\Z"), _re(_MAKE))),
    Rule(reason="title", means=_TITLES, asks=(_re(rf"\A.{{0,200}}?(?:{_TITLE})"), _re(rf"\b{_COUNT}\b.{{0,10}}\bwords?\b.{{0,40}}(?:{_TITLE})|(?:{_TITLE}).{{0,60}}\b{_COUNT}\b.{{0,10}}\bwords?\b"), _re(_ONLY_THIS), _re(r"\b(message|conversation|chat|query|prompt)\b|\A[^\n]{0,80}\btitle only\b")), fresh=True),
    Rule(reason="title", means=_TITLES, system=(_re(rf"\A.{{0,240}}?(?:{_TITLE})"),), form=(_re(_BRIEF),), fresh=True, when=_has_few_tools),
    Rule(reason="slug", means="a file or branch name for the conversation", asks=(_re(rf"{_MAKE}.{{0,60}}\b(slug|file ?name|branch name)\b.{{0,200}}\b(hyphen|kebab|only|extension|lowercase)"), _re(rf"{_STRICT}|{_A_TALK}|\bno (file )?extension\b|\A.{{0,40}}\bslug\b"))),
    Rule(reason="title", means=_TITLES, asks=(_re(r"\A\W*you are [^.\n]{0,60}\b(title generator|titling)\b"),), fresh=True),
    Rule(reason="tags", means="labels for the conversation", asks=(_re(rf"{_MAKE}.{{0,40}}({_TAGS})"), _near(_TAGS, _A_TALK, 120)), fresh=True),
    Rule(reason="emoji", means="a face for a message", asks=(_re(r"\b(fitting|single|suitable|appropriate|one) emoji\b.{0,200}\bmessage\b"),), fresh=True),
    Rule(reason="commit_message", means=_COMMIT, asks=(_re(rf"{_MAKE}.{{0,60}}\b(commit messages?|pull request (title|description))\b|\bcommit messages?\b.{{0,80}}{_MAKE}"), _re(_BRIEF)), fresh=True, when=_shows_diff),
    Rule(reason="commit_message", means=_COMMIT, asks=(_re(r"\bcommit messages?\b|\bpull request\b|\bbranch names?\b"),), fresh=True, when=_is_long_request),
    Rule(reason="commit_message", means=_COMMIT, system=(_re(r"\bcommit\w*( messages?)?\b"),), fresh=True, when=_shows_diff),
    # -- what the person may say or search next
    Rule(
        reason="follow_ups", means=_FOLLOW,
        asks=(_re(r"\b(predict|suggest|generate|propose)\b.{0,60}\b(follow[- ]?ups?|questions|prompts|messages|replies)\b.{0,80}\b(user|next)\b"),),
        when=lambda v: v.answers == 0 or bool(re.search(r"\b(json|list|array)\b", v.request, re.IGNORECASE)),
    ),
    Rule(reason="follow_ups", means=_FOLLOW, asks=(_re(r"\b(generat|suggest|predict|propos|provid|creat)\w*\b.{0,80}\b(follow[- ]?ups?( \w+)?|suggestions|next (messages?|prompts?|questions?)|questions (that )?(the )?(user|human))\b"), _re(_BRIEF), _re(r"\b(user|human|assistant)('s)?\b")), when=lambda v: v.answers == 0 or bool(re.search(r"\b(json|list|array)\b", v.request, re.IGNORECASE))),
    Rule(reason="follow_ups", means=_FOLLOW, asks=(_re(r"\A.{0,80}\bsuggestion generator\b"),), fresh=True),
    Rule(reason="follow_ups", means=_FOLLOW, system=(_re(r"\b(suggestion generator|(ask|suggest|identify|generat\w*|propos\w*|creat\w*) (\w+[- ]){0,4}(related|follow[- ]?up|next) questions|generat\w+ (\w+ ){0,3}suggestions)\b"),), fresh=True, when=_has_few_tools),
    Rule(reason="follow_ups", means=_FOLLOW, asks=(_re(r"\bschlage?\b.{0,40}\bfragen\b.{0,60}\b(nutzer|nächste)|\b(propose|suggère)\w*\b.{0,40}\bquestions\b.{0,60}\b(suite|suivantes|utilisateur)|\bsugiere\b.{0,40}\bpreguntas\b|(推荐|建议|预测).{0,20}(问题|提问)"), _re(_FORM))),
    Rule(reason="search_queries", means=_SEARCH, asks=(_re(r"\b(generat|formulat|determin|writ)\w*\b.{0,80}\bsearch quer(y|ies)\b"),), fresh=True),
    Rule(reason="search_queries", means=_SEARCH, system=(_re(r"\b(formulate|rephrase|rewrite|condense|generate|create)\b.{0,120}\b(standalone|stand-alone|search) (question|quer)"),)),
    Rule(reason="search_queries", means=_SEARCH, asks=(_re(r"\b(re-?phras\w*|re-?writ\w*|condens\w*|re-?formul\w*|riformul\w*|turn|(um)?formulier\w*|re(e)?scri\w+|переформул\w*|перепиши)\b|改写|重写|書き換え|言い換え|재구성"), _near(_STAND_ALONE, _QUERY, 160)), fresh=True),
    Rule(reason="search_queries", means=_SEARCH, asks=(_re(r"\b(generat|formulat|construct|creat|writ|expand|decompos|break|re-?phras|re-?writ|analy[sz])\w*\b.{0,100}\b((web|google|search|keyword|alternative|database|retrieval|sub|vector|improved|different)[- ](\w+[- ])?(quer(y|ies)|questions?|keywords?|versions?)|queries)\b"), _re(_BRIEF)), fresh=True, when=_is_form),
    Rule(reason="search_queries", means=_SEARCH, system=(_re(r"\b(re-?phras|re-?writ|reformulat|expand|generat|transform)\w*\b.{0,100}\b(quer(y|ies)|questions?)\b.{0,80}\b(search|retriev\w*|database|stand-?alone|self-contained|vector|knowledge)\b"),), when=_has_few_tools),
    Rule(reason="search_queries", means=_SEARCH, system=(_re(r"\A.{0,200}\bgenerat\w*\b.{0,40}\b(search|web|google|keyword) quer(y|ies)\b"),), form=(_re(_STRICT),), fresh=True, when=_has_few_tools),
    Rule(reason="search_queries", means=_SEARCH, asks=(_re(r"\A.{0,120}\b(generat|formulat|construct|creat|writ|expand|decompos|re-?phras|re-?writ|improv)\w*\b.{0,100}\b(quer(y|ies)|questions?)\b"), _re(r"\b(provided|user'?s?|original|given|following|input|initial) (\w+ )?(query|question)s?\b"), _re(_BRIEF)), fresh=True),
    Rule(reason="prompt_rewrite", means="the person's words made into a better prompt before they are sent", asks=(_re(r"\A.{0,160}\b(enhanc|improv|optimi[sz]|refin|re-?writ)\w*\b.{0,60}\bprompt\b"), _re(rf"{_ONLY_THIS}|\b(reply|respond|return|output)( with)? only\b")), fresh=True),
    Rule(reason="prompt_rewrite", means="the person's words made into a better prompt before they are sent", system=(_re(r"\A.{0,200}\b(enhanc|improv|optimi[sz]|refin|re-?writ)\w*\b.{0,60}\b(prompt|draft)\b|\A.{0,120}\bprompt (optimi[sz]|enhanc|improv|engineer)\w*"),), form=(_re(rf"{_ONLY_THIS}|\b(reply|respond|return|output)( with)? only\b"),), fresh=True, when=_has_few_tools),
    Rule(reason="translation", means="a page or a field translated in place", system=(_re(r"\A.{0,160}(?<!or )(?<!not )\btranslat(e|es|or|ion|ing)\b"),), form=(_re(r"\b(only|directly|without)\b.{0,60}\b(translat\w+|explanation|additional|result)\b"),), fresh=True, when=_has_few_tools),
    Rule(reason="translation", means="a page or a field translated in place", asks=(_re(r"\A.{0,200}\btranslat(e|es|or|ion|ing)\b"), _re(r"\b(only|directly|without)\b.{0,60}\b(translat\w+|explanation|additional|result)\b")), fresh=True, when=_is_form),
    Rule(reason="autocomplete", means="text at the cursor", system=(_re(r"\b(tab|auto)-?complet\w*\b.{0,60}\b(prompt|text|code|message|query|user)\b|\bnext[- ]edit\b|\bpredict\w*\b.{0,40}\b(next edit|completion)\b"),), fresh=True),
    Rule(reason="autocomplete", means="text at the cursor", asks=(_re(r"\bauto-?complet(e|ion)\b.{0,40}\b(system|engine|assistant|task)\b"),), fresh=True),
    Rule(reason="autocomplete", means="text at the cursor", system=(_re(r"\b(auto-?complet(e|ion)|code completion|fill[- ]in[- ]the[- ]middle)\b.{0,40}\b(system|engine|assistant|model|ai)\b"),), fresh=True),
    Rule(reason="autocomplete", means="text at the cursor", system=(_re(r"\bcomplet\w*\b.{0,60}\b(cursor|prefix|middle)\b"),), fresh=True),
    Rule(reason="autocomplete", means="text at the cursor", fresh=True, when=lambda v: bool(_FILL_IN.search(v.asked[:8000]))),
    Rule(reason="apply_edit", means="an edit merged into a file by machine", asks=(_re(r"\b(merge|apply|integrate)\b.{0,60}\b(snippet|edits?|changes?|update|code)\b.{0,40}\b(in)?to\b.{0,30}\b(file|document|code)\b"), _re(_FORM)), fresh=True),
    # -- keeping the context small
    Rule(reason="summary", means=_SUMMARY, asks=(_re(rf"(?:{_SUM_UP}).{{0,60}}?(?:{_THE_TALK})"),), fresh=True),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(_SUM_UP), _re(rf"(?:{_THE_TALK}|これまで|앞선|\b(discussed|our work|progress|everything|so far|facts and events)\b)"), _near(_SUM_UP, _FOR_LATER, 300)), when=_is_not_told),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(r"(?<![A-Za-z])context\b.{0,20}\b(compaction|compression)|\bcompact(ing|ion of) the (context|history)\b"), _re(r"\b(perform\w*|handoff|hand-over|continue|resume|required)\b|交接|继续|正在"))),
    Rule(reason="summary", means=_SUMMARY, asks=(_near(_SUM_UP, _THE_TALK, 80), _re(rf"{_ONLY_THIS}|\bpreserv(e|ing)\b")), fresh=False),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(r"\bcontext (window|limit|length|compression|compaction|overflow)\b"), _re(rf"{_SUM_UP}|\bsave memor"), _re(r"\b(must|required|before continuing)\b"))),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(r"\b(write|put|set) down\b|\b(provide|create|produce|write|generate)\b.{0,40}\b(prompt|notes?|brief\w*|account|record|overview)\b"), _re(r"\b(a|an|the) (fresh|new|next|another|later|different) (agent|assistant|session|instance|chat|context|model)\b|\bcontinuing (our|the|this) conversation\b")), fresh=False),
    Rule(reason="summary", means=_SUMMARY, system=(_re(r"\b(summari[sz]ation|summari[sz]ing|compaction) (assistant|agent|engine|system|component|task|expert)\b"),)),
    Rule(reason="summary", means=_SUMMARY, system=(_re(rf"\A.{{0,160}}?(?:{_TO_SUM_UP}).{{0,80}}?(?:{_A_TALK})"),)),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(r"\bextract\b.{0,80}\b(context|facts)\b.{0,80}\bconversation\b"),), fresh=True),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(_SUM_UP), _re(_THE_TALK)), fresh=False, when=_is_list_of_wishes),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(_SUM_UP), _re(rf"(?:{_THE_TALK}|\b(messages|conversation|exchange) above\b).{{0,40}}[:：]\s*\Z")), fresh=False),
    Rule(reason="summary", means=_SUMMARY, asks=(_re(rf"\A.{{0,120}}?(?:{_SUM_UP}).{{0,60}}?\b(tool|function|command|terminal|reasoning|thinking|scraped|page)\b( (output|result|response|content|steps)s?)?\b"), _re(_BRIEF)), fresh=True),
    Rule(reason="summary", means=_SUMMARY, system=(_re(rf"\A.{{0,400}}?(?:{_TO_SUM_UP}|\b(maintain|updat|keep|compact|creat)\w*\b.{{0,60}}\b(summary|(portion|part) of)\b|\bsummari[sz]ation request\b)"), _re(rf"\A.{{0,500}}?(?:{_A_TALK}|\b(actions|information results)\b|\b(provided|following) text\b)"), _re(_PART)), when=_is_no_answer),
    # -- memory
    Rule(reason="memory", means=_MEMORY, system=(_re(_PART), _re(r"\A.{0,400}?\b(memor(y|ies)|learnings?|knowledge|facts|profile|preferences)\b"), _re(rf"\b(about|of) (the|this|a) (user|person|human)\b|\busers?'|\bfrom (the )?(?:{_A_TALK})")), fresh=True, when=_has_few_tools),
    Rule(reason="memory", means=_MEMORY, asks=(_re(r"\b(memory (flush|extraction|consolidation|update task|checkpoint)|durable memor|managed memory)\b"),)),
    Rule(reason="memory", means=_MEMORY, system=(_re(r"\bmemory[- ](extraction|consolidation|manager|curator|update|writer|agent|assistant)\b|\A.{0,60}\bconsolidat\w+ memor|\A.{0,80}\borgani[sz]es? personal information\b"),)),
    Rule(reason="memory", means=_MEMORY, asks=(_re(rf"\b(extract|identify|review)\b.{{0,100}}\b(memor(y|ies)|facts|preferences|learnings)\b.{{0,100}}(?:{_A_TALK})"),), fresh=True),
    Rule(reason="memory", means=_MEMORY, asks=(_re(rf"\b(review|look (back )?(at|over|through)|go over|reflect on|analy[sz]e)\b.{{0,40}}(?:{_THE_TALK})"), _re(r"\b(save|update|store|memor\w+|skills?|remember|worth keeping)\b"))),
    Rule(reason="memory", means=_MEMORY, asks=(_re(rf"\b(review|reflect on|analy[sz]e)\b.{{0,40}}(?:{_THE_TALK})"), _re(r"\b(extract\w*|json)\b")), fresh=False),
    Rule(reason="memory", means=_MEMORY, asks=(_re(r"\bmemory manager\b|\bcontrols? the memory\b"),), fresh=True),
    Rule(reason="memory", means=_MEMORY, asks=(_re(r"(审查|回顾|审视|複習|分析).{0,12}(对话|会话|對話|聊天).{0,40}(记忆|保存|技能|記憶)"),)),
    Rule(reason="aside", means="the story stops for the client's own purposes", asks=(_re(r"\bpause the role-?play\b"),)),
    # -- clocks and machines
    Rule(reason="machine_message", means="the program speaks in the person's place", when=lambda v: bool(_MACHINE.match(v.asked))),
    Rule(reason="heartbeat", means=_CLOCK, asks=(re.compile(r"\bHEARTBEAT(_OK|\.md)?\b|\b[Hh]eartbeat (poll|prompt|tick|turn|wake|monitor)|(?<![a-z] )\b[Hh]eartbeat check"),)),
    Rule(reason="heartbeat", means=_CLOCK, asks=(_re(r"\A.{0,120}\b(execut|perform|run|process)\w* (the |your |all )?(periodic|heartbeat)\b"),)),
    Rule(reason="heartbeat", means=_CLOCK, asks=(_TOKEN,)),
    Rule(reason="heartbeat", means=_CLOCK, asks=(_SILENT,)),
    Rule(reason="heartbeat", means=_CLOCK, when=lambda v: v.is_event),
    Rule(reason="cron", means=_CLOCK, asks=(_re(r"\A\W{0,4}\[?(cron(:|\b.{0,40}\b(job|run))|scheduled (task|job|run|reminder)\b)|\A.{0,120}\b(as a|by a|this is a) ((scheduled|cron) )+(job|task|run)\b|\A.{0,200}\b(nobody|no one|no user|no human|no person) is (present|here|watching|available)"),)),
    Rule(reason="subagent", means="an agent's own helper at work", asks=(_re(r"\A.{0,200}(\[subagent\b|\bsub-?agent (context|task|run)\b|you are (running as )?a sub-?agent\b)"),)),
    Rule(reason="subagent", means="an agent's own helper at work", system=(_re(r"\A.{0,120}\byou are (\w+ ){0,6}sub-?agent\b"),)),
    Rule(reason="announce", means="a background job reports", asks=(_re(r"\b(background (task|process|job)|sub-?agent)\b.{0,60}\b(completed|finished|ended|failed)\b.{0,300}\b(internal|deliver|announce|result)"),)),
    Rule(reason="announce", means="a background job reports", when=_announces),
    Rule(reason="probe", means="is anybody there", when=_is_probe),
    # -- agents among themselves
    Rule(reason="speaker_selection", means="who speaks next in a group of agents", asks=(_re(_NEXT_SPEAKER), _re(rf"{_FORM}|\b(?:from|one of|options)\b.{{0,6}}\[|\bFINISH\b|\brespond with\b"))),
    Rule(reason="speaker_selection", means="who speaks next in a group of agents", system=(_re(_NEXT_SPEAKER), _re(rf"{_FORM}|\b(?:from|one of|options)\b.{{0,6}}\[|\bFINISH\b|\brespond with\b"))),
    Rule(reason="agent_to_agent", means="another agent spoke, not the person", when=lambda v: v.other_speaker),
    Rule(reason="guardrail", means="a check of what is said, not an answer to it", system=(_re(r"\A\W{0,4}(you (check|decide|detect|classify|judge)|check|decide|determine|detect|classify|judge|evaluate|assess|flag)\b.{0,80}\b(if|whether|for)\b"),), when=lambda v: v.is_structured),
    Rule(reason="guardrail", means="a check of what is said, not an answer to it", asks=(_re(r"\b(safe|unsafe|harmful|policy|policies|violat\w+|jailbreak\w*|appropriate)\b"), _re(r"\b(determin|decid|check|classif|assess|detect)\w*\b.{0,80}\b(if|whether|unsafe|safety|safe)\b"), _re(r"\b(yes|true|safe)\b.{0,4}\b(or|/|and)\b.{0,4}\b(no|false|unsafe)\b|\b(respond|answer|reply) with\b|\(yes/no\)|\byes\W+no\b")), fresh=True),
    Rule(reason="judge", means="a check of what is said, not an answer to it", system=(_re(r"\byou are an? (\w+ ){0,3}(judge|evaluator|grader|critic|reviewer of (answers|responses))\b"),)),
    Rule(reason="judge", means="a check of what is said, not an answer to it", asks=(_re(r"\b(rate|score|grade|evaluate|compare)\b.{0,60}\b(the )?(assistant'?s?|model'?s?|ai'?s?)\b.{0,20}\b(response|answer|reply|output)"),), fresh=True),
    Rule(reason="judge", means="a check of what is said, not an answer to it", asks=(_re(r"\b(scor|rat|grad|evaluat|assess|judg|determin|classif|verif|decid|check|compar|attribut)\w*\b.{0,160}\b(relevan\w+|response|answers?|outputs?|statements?|claims?|documents?|passages?|context|sentences?|trace|hallucinat\w+|faithful\w*|groundedness|safe(ty)?|complian\w+|compl(y|ies))\b"), _re(_STRICT)), fresh=True, when=_is_form),
    Rule(reason="judge", means="a check of what is said, not an answer to it", asks=(_re(r"\A.{0,200}\b(analy[sz]e|score|rate|grade|classify|rank|assess)\b.{0,60}\brelevan(ce|t)\b.{0,80}\b(query|question|document)"),), fresh=True, when=_is_form),
    Rule(reason="planning", means="an agent plans before it acts", asks=(_re(r"\bfacts survey\b|\bsurvey of (the )?facts\b"),)),
    Rule(reason="merge", means="several answers made into one", asks=(_re(r"\bsynthesi[sz]e\b.{0,60}\bresponses\b.{0,60}\bsingle\b|\bset of responses from (various|several|multiple) models\b"),), fresh=True),
    Rule(reason="merge", means="several answers made into one", asks=(_re(r"\b(synthesi[sz]e|merge|merging|combine|combining|unify|identify)\b.{0,120}\b(responses?|answers|texts|summaries|alternatives|inputs)\b.{0,80}\b(above|provided|into|single|one)\b|\b\d+ responses provided\b|\bresponses? (alternatives|provided)\b"), _re(r"\b(coheren\w+|unified|concise|single|insights|key)\b")), when=lambda v: bool(_MERGES.search(v.system)) or v.answers == 0),
    Rule(reason="structured_one_off", means="one question whose answer only a program reads", fresh=True, when=lambda v: v.is_structured),
    Rule(reason="structured_one_off", means="one question whose answer only a program reads", fresh=True, system=(_re(r"\bcall the \S{0,30} ?tool\b|\bcall \S{3,40} (with|to)\b"),), when=lambda v: v.tools == 1),
    # -- anything else that works on a conversation instead of having one
    Rule(reason="quoted_conversation", means="it works on a conversation instead of having one", fresh=True, when=_quotes_conversation),
    Rule(reason="quoted_conversation", means="it works on a conversation instead of having one", fresh=True, when=_only_dialogue),
    Rule(reason="quoted_conversation", means="it works on a conversation instead of having one", fresh=True, asks=(_re(_STRICT),), when=_shows_dialogue),
    Rule(reason="quoted_conversation", means="it works on a conversation instead of having one", fresh=True, asks=(_re(_OPENS),), when=_shows_dialogue),
    Rule(reason="text_function", means=_FUNCTION, fresh=True, system=(_re(_PART),), form=(_re(_STRICT),), when=_is_no_answer),
    Rule(reason="text_function", means=_FUNCTION, fresh=True, form=(_re(_NOT_ANSWERED),), when=_has_few_tools),
    Rule(reason="text_function", means=_FUNCTION, fresh=True, asks=(_re(_OPENS), _re(_STRICT)), when=_is_form),
    Rule(reason="text_function", means=_FUNCTION, fresh=True, asks=(_re(rf"\A.{{0,500}}?(?:{_THIRD_PERSON})"), _re(_OPENS)), when=_wants_no_answer),
    Rule(reason="text_function", means=_FUNCTION, fresh=True, asks=(_re(rf"\A.{{0,500}}?(?:{_THIRD_PERSON})"), _re(r"\A.{0,400}?\b(?:generat|suggest|list|propos|construct)\w*\b")), when=_wants_no_answer),
    Rule(reason="text_function", means=_FUNCTION, fresh=False, system=(_re(_PART),), form=(_re(_NOT_ANSWERED),), when=_has_few_tools),
    Rule(reason="text_function", means=_FUNCTION, fresh=True, system=(_re(_PART),), when=_is_form),
    Rule(reason="text_function", means=_FUNCTION, fresh=False, asks=(_re(rf"\A\W{{0,4}}you(?:'re| are) (?=.{{0,200}}(?:{_TASK}))"), _re(rf"\A.{{0,200}}?(?:{_ROLE})"))),
    Rule(reason="text_function", means=_FUNCTION, fresh=False, asks=(_re(rf"\A.{{0,60}}?(?:{_TASK})"), _re(rf"\A.{{0,500}}?(?:{_THIRD_PERSON})"))),
    Rule(reason="memory", means=_MEMORY, fresh=False, system=(_re(rf"\A.{{0,300}}?\byour (?:job|task|role) is to (?:\w+ ){{0,3}}?(?:{_PROCESS}|look|review|read|inspect|study)\b[^.\n]{{0,60}}?\b(?:conversation|session|transcript|chat|dialogue)\b"),)),
    Rule(reason="closing_instruction", means="after the last answer only the client spoke", fresh=False, when=lambda v: bool(v.closing) and not v.is_output),
)  # fmt: skip

#: reason -> what it means, for people.
MEANINGS: Mapping[str, str] = {
    **{rule.reason: rule.means for rule in reversed(RULES)},
    "conversation": "no rule knows it as housekeeping",
    "guardrail": "a check of what is said, not an answer to it",
    "silent_reply": "the reply is a token that only a program reads",
    "works on a recorded conversation": "it quotes a recorded question with its answer and does not wait for the next line",
    "carries on with a side turn's tools": "only tool results follow a side turn",
    "said by the client": "the client named the kind (X-Turn-Type)",
}


class Gate:
    """Leaves out the rules of a table that cannot hold, because words are missing that their patterns need (`literals`).

    With each request all rules were tried, and hardly any has a chance: it was the dearest part of recording one.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._sieves = {
            fresh: _Sieve([rule for rule in rules if rule.fresh in (None, fresh)]) for fresh in (True, False)
        }

    def candidates(self, view: View) -> list[Rule]:
        """Return the rules that may hold, in the order of the table."""
        return self._sieves[view.answers == 0].candidates(view)


class _Sieve:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._always: list[int] = []
        self._asked = _Pieces()
        self._told = _Pieces()
        self._formed = _Pieces()
        self._systems: OrderedDict[str, frozenset[int]] = OrderedDict()  # system prompts come again
        for position, rule in enumerate(self._rules):
            needs = [(need, self._asked) for p in rule.asks if (need := _needed(p)) is not None]
            needs += [(need, self._told) for p in rule.system if (need := _needed(p)) is not None]
            needs += [(need, self._formed) for p in rule.form if (need := _needed(p)) is not None]
            if needs:
                pieces, index = min(needs, key=lambda entry: len(entry[0]))
                for piece in pieces:
                    index.setdefault(piece, []).append(position)
            else:
                self._always.append(position)

    def candidates(self, view: View) -> list[Rule]:
        found = set(self._always)
        if view.request:
            found.update(self._asked.held(view.request))
        if view.system:
            found.update(self._by_system(view))
        return [self._rules[position] for position in sorted(found)]

    def _by_system(self, view: View) -> frozenset[int]:
        known = self._systems.get(view.system_ends)
        if known is None:
            known = frozenset(self._told.held(view.system) | self._formed.held(view.system_ends))
            self._systems[view.system_ends] = known
            if len(self._systems) > 256:
                self._systems.popitem(last=False)
        return known


class _Pieces(dict[str, list[int]]):
    """Pieces of text, each with the rules that need it."""

    def held(self, text: str) -> set[int]:
        """Return the rules that a piece of ``text`` lets through."""
        lowered = text.lower()
        pieces: Iterable[str] = self
        if len(lowered) <= _FEW:
            # Of a short text only those pieces can be found that begin as some place of it does.
            places = {lowered[i : i + _START] for i in range(len(lowered))}
            places |= {place[:2] for place in places}
            pieces = [piece for place in self._starts.keys() & places for piece in self._starts[place]]
        return {position for piece in pieces if piece in lowered for position in self[piece]}

    @cached_property
    def _starts(self) -> dict[str, list[str]]:
        starts: dict[str, list[str]] = {}
        for piece in self:
            starts.setdefault(piece[:_START], []).append(piece)
        return starts


#: A text up to this is looked through faster than the pieces are.
_FEW, _START = 300, 3

_needed = cache(needed)


_GATE = Gate(RULES)


def read_view(messages: Sequence[Message], request: Mapping[str, Any]) -> View:
    """Return what the rules may see of a request; ``request`` is its body, with or without messages."""
    answered = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    newest = messages[answered[-1] + 1 :] if answered else messages
    heard = [m for m in newest if m.get("role") == "user"]
    texts = [content_text(m.get("content")) for m in heard]
    asking = (
        texts[1:] if len(texts) > 1 and _TOLD.match(texts[0]) else texts
    )  # a summary goes before, then they ask
    words = "\n".join(bare for bare in map(own_words, asking) if bare)
    system = "\n".join(
        content_text(m.get("content")) for m in messages[:8] if m.get("role") in ("system", "developer")
    )
    closing = ""
    if answered and newest and all(m.get("role") in ("system", "developer") for m in newest):
        closing = "\n".join(content_text(m.get("content")) for m in newest)
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    tools = request.get("tools")
    asked = "\n".join(texts)
    return View(
        asked=asked,
        request=_ends(words or closing),
        system=system[:_HEAD],
        system_ends=_ends(system, 1500, 900),
        closing=closing,
        answers=len(answered),
        is_structured=is_structured(request),
        tools=len(tools) if isinstance(tools, list) else 0,
        max_tokens=limit if isinstance(limit, int) else None,
        is_event=bool(texts) and is_machine_event(texts[-1]),
        other_speaker=_is_other(messages, heard),
        is_output=bool(closing) and _is_output(messages, answered),
        written_out=_written_out(asked) if not answered else (0, 0),
        slots=_slots(asked) if not answered else 0,
    )


def _ends(words: str, head: int = _HEAD, tail: int = _TAIL) -> str:
    return words if len(words) <= head + tail else f"{words[:head]}\n…\n{words[-tail:]}"


def _lines_of(text: str) -> list[str]:
    """Return the lines of a text's beginning and end, mark-up and brackets in front of them left out, in lower case."""
    if len(text) > 2 * _SHEET:
        text = f"{text[:_SHEET]}\n{text[-_SHEET:]}"
    return [line.lstrip(_MARKUP)[:40].lower() for line in text.splitlines() if line.strip()]


def _written_out(text: str) -> tuple[int, int]:
    """Return (lines that a user or an assistant says in a dialogue written out, all lines); 0 unless both speak."""
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
    """Return how many fields of a form stand in a text: lines such as "Query: …", "### Context", "<document>", "[Input]"."""
    if "\n" not in text:
        return 0
    if len(text) > 2 * _SHEET:
        text = f"{text[:_SHEET]}\n{text[-_SHEET:]}"
    return sum(1 for line in text.splitlines() if _SLOT.match(line))


def _is_output(messages: Sequence[Message], answered: Sequence[int]) -> bool:
    """Whether a system message behind the last answer is an output: answers before have followed such messages, or there is code to run.

    Some agents give tool results the system's role. What a client says for its own purposes is not kept in the history.
    """
    for one, other in pairwise(answered):
        between = messages[one + 1 : other]
        if between and all(m.get("role") in ("system", "developer") for m in between):
            return True
    last = content_text(messages[answered[-1]].get("content"))
    return bool(_CODE.search(last[-2000:]))


def _is_other(messages: Sequence[Message], newest: Sequence[Message]) -> bool:
    """Whether the newest user message bears another name than the first one does."""
    first = next((m.get("name") for m in messages if m.get("role") == "user"), None)
    last = newest[-1].get("name") if newest else None
    return isinstance(first, str) and isinstance(last, str) and first != last


def is_silent(completion: Completion) -> bool:
    """Whether a reply is one token that only a program reads: NO_REPLY, HEARTBEAT_OK, [SILENT]."""
    return not completion.tool_calls and bool(_TOKEN_ONLY.match(spoken(completion.text)))


def is_structured(request: Mapping[str, Any]) -> bool:
    """Whether the reply must follow a given JSON schema or call one given function."""
    response_format = request.get("response_format")
    if isinstance(response_format, Mapping) and response_format.get("type") in ("json_schema", "json_object"):
        return True
    choice = request.get("tool_choice")
    tools = request.get("tools")
    return isinstance(choice, Mapping) or (
        choice == "required" and isinstance(tools, list) and len(tools) == 1
    )


def classify(messages: Sequence[Message], request: Mapping[str, Any], rules: Sequence[Rule] = RULES) -> Kind:
    """Return main or side with the reason; plain chat is main."""
    rule = first_rule(messages, request, rules)
    if rule is None:
        return Kind(kind=TurnKind.MAIN, reason="conversation")
    return Kind(kind=TurnKind.SIDE, reason=rule.reason)


def first_rule(
    messages: Sequence[Message], request: Mapping[str, Any], rules: Sequence[Rule] = RULES
) -> Rule | None:
    """Return the first rule of the table that holds, or None."""
    view = read_view(messages, request)
    gate = _GATE if rules is RULES else Gate(rules)
    return next((rule for rule in gate.candidates(view) if rule.holds(view)), None)


def classify_request(
    messages: Sequence[Message],
    request: Mapping[str, Any],
    wished: TurnKind | None,
    rules: Sequence[Rule] = RULES,
) -> Kind:
    """Return what a request is: what its client says (`proxy.ours.Wishes.kind`), else what the rules find."""
    if wished is not None:
        return Kind(kind=wished, reason="said by the client")
    return classify(messages, request, rules)


def evidence_of(messages: Sequence[Message], request: Mapping[str, Any]) -> list[str]:
    """Return the words by which the first rule that holds was met: each with where it stands."""
    rule = first_rule(messages, request)
    if rule is None:
        return []
    view = read_view(messages, request)
    found = []
    for patterns, place, text in (
        (rule.asks, "the request", view.request),
        (rule.system, "the system prompt", view.system),
        (rule.form, "the system prompt", view.system_ends),
    ):
        for pattern in patterns:
            match = pattern.search(text)
            if match is not None:
                words = " ".join(match[0].split())
                found.append(f"{place} says “{words[:120]}{'…' if len(words) > 120 else ''}”")
    return found or [rule.means]
