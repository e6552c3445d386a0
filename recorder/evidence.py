"""Evidence for the kind of a turn: word patterns as data, each with a topic, an example and the place where it is read. Sans-IO.

Words are the weaker half of the evidence. They are searched in the newest user text (beginning and end) and in the beginning of a short system
prompt, never in a long one: what an agent's manual mentions is not what is requested. Weights are in `weights.json` (`evals.train_classifier`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wire.regex_prefilter import PatternSet


@dataclass(frozen=True, slots=True, kw_only=True)
class WordPattern:
    """A word pattern.

    Attributes:
        code: name of the evidence; ``ask_<code>`` in the newest user text, ``role_<code>`` in a short system prompt.
        branches: alternatives.
        topic: reason code of a side turn that this evidence decides; "" where it names no topic.
        meaning: what `explain` displays.
        example: a text in which it is found.
        reads: characters of the text's beginning in which it is searched.
    """

    code: str
    topic: str
    branches: tuple[re.Pattern[str], ...]
    meaning: str
    example: str
    reads: int = 2000


def _alternatives(source: str) -> list[str]:
    """Return the top-level alternatives of a regular expression."""
    parts, depth, in_class, start, at = [], 0, False, 0, 0
    while at < len(source):
        letter = source[at]
        if letter == "\\":
            at += 1
        elif in_class:
            in_class = letter != "]"
        elif letter == "|" and not depth:
            parts.append(source[start:at])
            start = at + 1
        else:
            in_class, depth = letter == "[", depth + (letter == "(") - (letter == ")")
        at += 1
    return [*parts, source[start:]]


def _p(code: str, topic: str, meaning: str, example: str, *pattern: str, reads: int = 2000) -> WordPattern:
    branches = tuple(re.compile(part, re.IGNORECASE) for source in pattern for part in _alternatives(source))
    return WordPattern(
        code=code, topic=topic, branches=branches, meaning=meaning, example=example, reads=reads
    )


#: What is requested: an object that clients request.
TOPICS: tuple[WordPattern, ...] = (
    _p("title", "title", "a name for the conversation", "Generate a concise title", r"\btitl(?:e|es|ing)\b(?![\"']?\s*:\s*[\"'{])|\btite[ls]\b|\bt[ií]tulos?\b|\btitres?\b|\btitol[oi]\b|заголов|название|标题|標題|题目|タイトル|題名|제목", r"\b(?:name|label|description) (?:for|of) (?:this|the|a) (?:chat|conversation|session|thread|dialogue)|\bgive (?:this|the) (?:chat|conversation|session|thread) a name|\bname for (?:this|the) chat"),
    _p("label", "tags", "labels, an emoji or a file name for the conversation", "Generate 3 broad tags", r"\btags?\b|\bhashtags?\b|\bschlag\w+\b|\bslug\b|\bkebab|\bemojis?\b[\s\S]{0,90}\bmessage\b|\b(?:fitting|suitable|one|single) emoji|标签|タグ|태그|\bétiquettes\b|\betiquetas\b"),
    _p("commit", "commit_message", "a commit message", "Write a commit message for this diff", r"\bcommit(?:s\b| messages?\b)|\bpull request (?:title|description)|\bbranch name\b|提交信息"),
    _p("next_words", "follow_ups", "what the user may write next", "Suggest follow-up questions", r"\bfollow[- ]?ups?\b(?! (?:question|message|input|user)\W)|\b(?:suggest|predict|propos|generat|schlag)\w*\b.{0,80}(?:\bquestions?\b|\bsuggestions\b|\bnext (?:message|prompt)|\bmessages this user|\bfragen\b|\bpreguntas\b)|\brelated questions\b|推荐.{0,12}问题|建议.{0,12}问题"),
    _p("query", "search_queries", "a query or a stand-alone question", "Rephrase it as a standalone question", r"\bstand[- ]?alone\b|\bstands alone\b|\bself-contained\b|\bsearch quer(?:y|ies)\b|\b(?:re-?phras|re-?writ|reformulat|condens|generat|formul)\w*\b.{0,90}\b(?:quer(?:y|ies)|questions?\W+(?:to|so|in|that))\b|\bquer(?:y|ies) variants|\beigenständig\b|independiente|独立的?问题|検索クエリ"),
    _p("summary", "summary", "a shorter form of the conversation", "Summarize the conversation so far", r"(?<!not a )\bsummar(?:y|i[sz]\w*|ies)\b|\bcondens(?:e|ing)\b|\bcompact(?:ion|ing)\b|\bcompress(?:ion|ing)\b|\bhand-?(?:off|over)\b|\bzusammen(?:fass\w*)?\b|\brésum|\bresum(?:e|en|ir)\b|\briassum|总结|概括|摘要|压缩|要約|요약|резюм|\bstate snapshot\b|\bextract\w*\b.{0,60}\bcontext\b"),
    _p("memory", "memory", "what to remember about the user", "Extract durable facts about the user", r"\bmemor(?:y|ies)\b|\bdurable\b|\b(?:facts|preferences|learnings)\b.{0,60}\b(?:user|person|conversation|chat)\b|\bpersonal information\b|记忆|記憶|기억|\bworth (?:keeping|remembering|saving)\b"),
    _p("edit", "autocomplete", "text at the cursor or an edit merged by machine", "You are an autocompletion system", r"\bauto-?complet|\btab-complet|\bnext[- ]edit\b|\bfill[- ]in[- ]the[- ]middle|<\|?fim|\{\{FILL_HERE\}\}|<\|?(?:cursor|suffix)\|?>|\bPREFIX:|\bcode completion (?:engine|model)|\bmerge\b.{0,40}\bsnippet|\bapply\b.{0,30}\b(?:edit|update|diff)s?\b.{0,30}\bto\b"),
    _p("rewrite", "prompt_rewrite", "a prompt or a page rewritten before it is used", "Reply with only the improved prompt", r"\b(?:enhanc|improv|optimi[sz]|refin|re-?writ)\w*\b.{0,50}\bprompt\b|\bprompt (?:engineer|optimi[sz]er|enhanc\w+)|\btranslat(?:or|ion engine)\b|翻译(?:专家|引擎|助手)"),
    _p("speaker", "speaker_selection", "the next speaker in a group of agents", "Select the next speaker", r"\bnext (?:role|speaker|worker|agent|participant|turn)\b|\bwho (?:\w+ )?(?:speaks?|acts?|talks?) next|\bspeak next\b"),
    _p("judge", "judge", "a check or a grade of a text", "You are an impartial judge", r"\b(?:impartial|expert) (?:judge|evaluator|grader)\b|\b(?:judge|evaluator|grader|critic|moderator|guardrail|classifier)\b|\b(?:score|rate|grade|evaluat\w+|assess) (?:the|this|how|whether|each|an?)\b|(?<!\d\. )(?<!\d\) )(?<!- )(?<!\* )\b(?:check|determine|decide|detect|judge|analy[sz]e|classify) (?:if|whether|which|the|this|each)\b|\brelevan(?:t|ce)\b.{0,60}\b(?:query|document|question)|\bunsafe\b|\bjailbreak|判断|评估|\bklassifizier|\bclassific|\beinordnen\b|\beinzuordnen\b"),
    _p("merge", "merge", "several answers made into one", "Synthesize these responses into one", r"\bsynthesi[sz]e\b|\bset of responses\b|\bmerge the (?:texts|answers|responses)|\bresponses from (?:various|several|multiple)"),
    _p("plan", "planning", "an agent's own planning step", "Write a survey of the facts", r"\bfacts survey\b|\bsurvey of (?:the )?facts\b|\bdevise (?:a )?(?:new )?plan\b|\bto derive facts\b"),
)  # fmt: skip

#: Who speaks: a clock or a program, not a person.
MACHINES: tuple[WordPattern, ...] = (
    _p("clock", "heartbeat", "sent by a timer", "HEARTBEAT: check your list", r"\bheartbeat(?:_OK|\.md| (?:poll|prompt|tick|turn|tasks|wake))|\A\W*heartbeat\b(?! check)|\bheartbeat agent|\bperiodic\b.{0,30}\b(?:tasks?|check)"),
    _p("cron", "cron", "sent by a schedule", "[cron:daily] collect the news", r"\A\W{0,4}\[?cron\b.{0,50}(?:\]|:|job|run)|\A\W*scheduled (?:task|job|run)|\bas a scheduled\b|\bthis is a scheduled|\bno (?:user|human|one|person) is (?:present|here|watching|available)"),
    _p("silent", "heartbeat", "allows a reply that only a program reads", "reply with NO_REPLY", r"\b(?:reply|respond|answer|say|output)(?: only| with| exactly| just)*:? [`'\"]?\[?(?-i:[A-Z]{2,}_[A-Z_]+)\b", r"\b(?:reply|respond|say|answer)(?: only| with| exactly| just)+:? ['\"“][^'\"”\n]{3,40}['\"”][^\n]{0,12}\bstop\b|\b(?:reply|respond|answer)(?: only| with)* \[(?-i:[A-Z]{4,})\]"),
    _p("background", "subagent", "from or for a background agent", "[Subagent Context] You are a subagent", r"\bsub-?agent\b|\bbackground (?:task|process|job|review)\b.{0,60}\b(?:complet|finish|end|fail)"),
    _p("memory_job", "memory", "a background job that keeps memories", "Pre-compaction memory flush", r"\bpre-compaction\b|\bmemory (?:flush|extraction|consolidation|checkpoint|agent|manager|curator)\b|\bmanaged memory\b"),
    _p("notice", "machine_message", "a program's message in the user's role", "[SYSTEM: the session is reset soon]", r"\A\s*\[(?:system|automated|automatic|internal)\b[^\]\n]*(?:\]\s*\Z|:)|\bpause (?:the|your) role-?play\b|\binternal (?:task|system) (?:completion|message|event)\b"),
)  # fmt: skip

#: How it is requested: forms that programs use, and forms that people use (`human`, `answer`).
FORMS: tuple[WordPattern, ...] = (
    _p("dialogue", "", "is about a conversation", "the conversation above", r"\b(?:conversation|dialogue?|transcript|discussion|exchange|chat|session|thread|messages|talk)s?\b|\bgespräch|\bunterhaltung|\bverlauf|\bconversaci|\bconversa|对话|会话|聊天|對話|會話|会話|대화|разговор|диалог"),
    _p("form", "", "prescribes the form of the answer", "Reply with the title only", r"\bonly\b|\bnothing (?:else|but|except)|\bjson\b|\bno (?:explanations?|quot\w+|preamble|punctuation|markdown|other)\b|\bwithout (?:any |\w+ )?(?:quot|explan|punct|preamble|lead-in)|\b(?:at most|max(?:imum)?|up to|no more than|under)\b.{0,14}\b(?:words|characters|tokens)|\bor (?:less|fewer)\b|\b\d+\s?[-– ](?:\d+ )?words?\b|\bwords or\b|\byes(?:\W| or )+no\b|\b(?:one|each) (?:\w+ )?per line\b|\bnur\b|\bhöchstens\b|\bsolo\b|\bs[oó]lo\b|\bapenas\b|\buniquement\b|только|仅输出|只输出|只需|仅返回|只返回|仅回复|只回复|只给出|不要|だけを|だけで|のみを|만 출력|만 답"),
    _p("task", "", "defines the task of a program", "Your task is to", r"\b(?:your|the|sole) (?:[\w-]+ ){0,2}(?:task|job|goal|role|objective|responsibility)\b.{0,30}?\b(?:is|are)\b|\btasked with\b|#+ ?task\b|<(?:role|primary_objective|task|instructions?)>|\b(?:deine|ihre) aufgabe\b|\bsua tarefa\b|\btu tarea\b|你的(?:任务|职责)|\byou (?:will be|are) (?:given|provided)\b|\A\W*given (?:a|an|the)\b|\A\W*based on (?:the|this)\b"),
    _p("function", "", "gives the model the role of a text function", "You are a title generator", r"\byou(?:'re| are|r)\b[^.\n]{0,70}?\b(?:summari[sz]|titl|naming|classif|categori|extract|re-?phras|re-?writ|evaluat|grad(?:er|ing)|judge|scor(?:er|ing)|rout(?:er|ing)|detector|compress|compact|consolidat|rank|generator|predict|checker|curator|reviewer|translator|retriev|label|autocomplet|tagging|building a memory)\w*|\byou label\b|\byou turn\b|\bdu (?:bist|vergibst)\b[^.\n]{0,60}?(?:titel|zusammenfass|klassif|bewert|gutachter|extra)|\b(?:eres|você é|sei)\b[^.\n]{0,60}?(?:cl?as+ific|resum|t[ií]tul|titol|evalu|avali|extra)|あなたは[^。\n]{0,40}?(?:タイトル|要約|分類|評価|抽出)|(?:你是|你需要)[^。\n]{0,30}?(?:标题|总结|摘要|分类|评估|改写|提取|翻译)"),
    _p("third_person", "", "speaks of the user in the third person", "the user's latest message", r"\b(?:the|this|a|an) (?:user|human|person)\b|\busers?['’]s?\b|\bassistant\b|\bthe (?:\w+ )?(?:ai|model)'s\b|用户|ユーザー|\bdes? (?:nutzers|usuario|usuário)\b"),
    _p("unanswered", "", "forbids to answer the quoted text", "do not answer the question", r"\b(?:do not|don't|never|not to|without)(?: try to| attempt to)? (?:answer|respond|reply|execut|follow|address)\w*|\bnicht beantworten\b|不要回答"),
    _p("later", "", "for a context that continues without its beginning", "so that another agent can continue", r"\b(?:replac\w+|resum(?:e|ing)\b|continu(?:e|ing|ation)|pick up|carry on|successor|future)\b|\bcontext (?:window|limit|compaction|compression)|\b(?:fresh|new|next|another) (?:agent|assistant|context|session|instance|model)\b|替代|继续|以降|weiterarbeit|retomar|nuevo contexto|продолж"),
    _p("order", "", "begins with an order about a text", "Summarize the following", r"\A\W{0,6}(?:please )?(?:analy[sz]e|extract|identify|determine|classify|summari[sz]e|evaluate|rate|score|judge|re-?write|rephrase|compress|condense|generate|create|produce|predict|suggest|write|provide|progressively|review|merge|list|erstelle|formuliere|schlage|fasse|составь|resume|请|審)\b"),
    _p("human", "", "begins in the first person", "a title for my talk", r"\A[^\n]{0,160}?(?:\b(?:i|i'm|i've|me|my|mine|we|us|let's|ich|mein\w*|mir|wir|je|mon|ma|moi|yo|mi|mis|io|mio|eu|meu|minha|мне|мой)\b|我|僕|私|저는|내 )"),
    _p("answer", "", "orders an answer to a user's question", "Answer the user's question", r"(?<!not )(?<!n't )\b(?:respond to|answer|help) the (?:user|question|query|following question)|\bquestion[- ]answering\b|\bfriendly (?:talk|conversation)\b|\brespond to the user query\b"),
)  # fmt: skip

_BRANCHES = PatternSet(
    (branch, (pattern, branch)) for pattern in (*TOPICS, *MACHINES, *FORMS) for branch in pattern.branches
)


def find_words(text: str) -> frozenset[str]:
    """Return the codes of the word patterns that a text contains."""
    codes: set[str] = set()
    for pattern, branch in _BRANCHES.candidates(text):
        if pattern.code not in codes and branch.search(text, 0, pattern.reads):
            codes.add(pattern.code)
    return frozenset(codes)
