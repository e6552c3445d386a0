"""Words by which people react to a reply, in English, Spanish, German and French. Data only; `scorers.reactions` reads it.

Rules of this file: no sentence is stored. A pattern says how a reaction is *built* (who is spoken of, what is asked to change)
and its word classes say what it may be about: the form of a reply (length, tone, format, language) or whether it was right.
Everything is written as people write it; accents, case and apostrophes are folded away when it is loaded, so "más", "mas" and
"MÁS" are the same word and "don't" also matches "dont".

Word classes
    adj     how a reply may be: short, formal          noun    what a reply may contain: emoji, bullet points, JSON
    lang    names of languages                         verb    what a person tells an assistant to do with a reply
    style   the verbs that only change form            mark    words that turn a phrase into a request: please, no, more
    bad     ways to be wrong or unwelcome              good    ways to be right or welcome
    reply   names for what was said                    fill    words without content of their own
    ask     first words of a real question             task    first words of a new task
    thank   gratitude

In a pattern `{adj}` stands for any word of the class and `{pre}` for any run of words that carry no content of their own
(so that "your answer was too long" is a complaint and "my flight was too long" is not).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    JUDGEMENT = "judgement"  #: says that the reply is bad: a complaint wherever it stands
    INSTRUCTION = (
        "instruction"  #: says how it should be: after a new question it is about the next reply only
    )
    PRAISE = "praise"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to react.

    Attributes:
        name: goes into the verdict's detail.
        residue: content words that may remain beside the match and the word classes; None: any number.
        in_question: it also counts inside a real question ("why so long?").
        sets_scene: it opens a role play as well ("Your name is Bob and you keep a shop. Greet me."): it says something of the
            reply only where no question or task goes with it.
        reason: why this is a reaction to the reply and not a new topic.
    """

    name: str
    kind: Kind
    regex: str
    reason: str
    residue: int | None = None
    in_question: bool = False
    sets_scene: bool = False


J, I, P = Kind.JUDGEMENT, Kind.INSTRUCTION, Kind.PRAISE  # noqa: E741

WORDS: dict[str, dict[str, str]] = {
    "english": {
        "adj": """short shorter shortest brief briefer briefly concise concisely succinct terse compact tighter crisp long
            longer lengthy wordy wordier verbose verbosely detailed thorough thoroughly elaborate chatty chattier talkative
            formal formally informal informally casual casually professional professionally friendly friendlier polite
            politely rude stiff serious seriously neutral robotic enthusiastic warmer colder personal playful relaxed relax
            simple simpler simply plain plainer plainly technical academic complicated complex clear clearer structured
            direct directly blunt flowery dense repetitive generic vague specific precise readable condescending small smaller bigger valid shortly normal ordinary""",
        "noun": """emoji emojis emoticon emoticons smiley smileys smilies markdown bold italics italic asterisk asterisks
            stars bullet bullets bulletpoints list lists table tables heading headings header headers json yaml xml html csv
            latex prose paragraph paragraphs formatting format filler fluff preamble preambles introduction introductions
            intro apology apologies disclaimer disclaimers exclamation capitals caps jargon slang swearing sentence sentences
            word words detail details depth explanation explanations boilerplate repetition adjectives tone style register
            text line lines markup greeting greetings point points mark marks object output code block blocks chatter smalltalk
            language""",
        "lang": """english spanish german french italian portuguese dutch russian chinese japanese korean arabic polish
            turkish swedish hindi""",
        "verb": """use write answer reply respond return give output speak say talk format put make switch stick keep be include produce print set
            expect miss love want need prefer like read see show stay remain sound phrase word tell get go have add needs explain produce""",
        "style": """use put keep make be stop skip drop cut avoid remove lose omit ditch leave wrap switch stick stay format
            trim shorten simplify condense tone reply respond answer speak""",
        "mark": """please no not without only just instead stop skip drop cut avoid remove lose omit ditch leave more less
            fewer never quit don't too rather shorter briefer simpler clearer plainer friendlier pls""",
        "bad": """wrong incorrect incorrectly false inaccurate untrue mistaken nonsense garbage rubbish useless unhelpful
            terrible awful horrible bad worse ugly confusing unclear outdated broken misleading incomplete irrelevant
            pointless disappointing annoying sloppy invalid weird ridiculous dead buggy off inappropriate unreadable""",
        "good": """perfect great excellent awesome wonderful brilliant fantastic amazing lovely nice good cool superb neat
            beautiful correct right exactly super helpful useful better sweet terrific impressive outstanding yay bravo
            precisely fabulous""",
        "thank": "thanks thank thx ty cheers thankyou tysm appreciated grateful",
        "reply": """answer answers reply replies response responses explanation version output result text message code
            function script command link summary draft one ones job work try style part parts question""",
        "fill": """a an the this that these those it its it's is was are were be been being am i me my you your we us he she they
            them of for to in on at as with by from and or but so also still again way far much many very really quite
            just bit little kind sort hmm hm oh ah well ok okay yes yeah yep no nope nah sorry please do does did don doesn
            didn isn wasn aren weren can could would will should may might have has had having s t d m re ve ll not too more
            less fewer seems looks sounds feels think find here there now then next time times all any every each some so few several full small
            if than what how about up out down only even lot lots always ever think guess actually honestly really such
            enough though although however because since stop using one two first second last other another let must
            mate man buddy everything something anything thing things today rest ll dear sir mostly maybe both few several full small length everywhere couple half twice winded rather pretty somewhat kinda""",
        "ask": """how what what's which who whose whom when where why is are was were does do did am if has have can could
            should would will may shall""",
        "task": """write explain list tell show translate give create add summarize summarise compare describe continue now
            next generate calculate compute find send sort convert draft suggest recommend plan name let let's make
            please also then go do""",
    },
    "spanish": {
        "adj": """corto corta cortos cortas breve breves conciso concisa largo larga largos largas detallado detallada
            formal formales formalmente informal casual profesional amable educado serio neutral simple sencillo sencilla
            técnico claro clara directo directa específico concreto concreta preciso resumido brevemente""",
        "noun": """emoji emojis emoticonos emoticono caritas markdown negrita negritas cursiva asteriscos lista listas tabla
            tablas título títulos json yaml xml html csv prosa párrafo párrafos formato relleno introducción disculpas
            texto palabras frase frases detalle detalles explicación explicaciones viñetas líneas línea tono estilo""",
        "lang": "español inglés alemán francés italiano portugués castellano catalán",
        "verb": """usa use usar utiliza escribe escribir contesta contestar responde responder da dame habla hablar di pon
            hazlo haz sé sea ser quiero quisiera prefiero necesito háblame dilo mantén mantenlo explica querría""",
        "style": "usa utiliza pon sé sea responde contesta habla háblame evita quita deja elimina omite hazlo escribe",
        "mark": """por favor favor sin no más menos solo sólo demasiado demasiados demasiada demasiadas deja evita quita
            elimina basta nada quiero prefiero necesito puedes podrías en""",
        "bad": "incorrecto incorrecta mal falso falsa equivocado equivocada erróneo inútil confuso confusa terrible malo mala horrible feo",
        "good": """perfecto perfecta genial excelente estupendo fantástico maravilloso bien bueno buena buenísimo correcto
            exacto exactamente fenomenal guay increíble vale útil justo""",
        "thank": "gracias agradezco agradecido",
        "reply": "respuesta respuestas texto explicación versión mensaje código resultado trabajo pregunta siguiente",
        "fill": """el la los las un una unos unas lo eso esto esa este esta es era fue son está están ser de del al a en con
            por para y o pero que se me te le nos tu tus su mi muy más menos tan demasiado demasiada demasiados demasiadas
            sí no ya aún todavía otra vez bastante favor solo sólo puedes podrías puede podría tanto tanta tantos tantas
            un poco usted tú yo he has ha había qué ahora sirve mucho mucha muchas muchos también""",
        "ask": """qué cuál cuáles quién quiénes cómo cuándo dónde cuánto cuánta cuántos cuántas por qué es está hay puedo
            debería sabes""",
        "task": "escribe explica explícame lista dime muestra traduce dame crea añade resume compara describe continúa ahora sigue",
    },
    "german": {
        "adj": """kurz kürzer knapp knapper bündig prägnant lang länger langatmig ausführlich ausführlicher wortreich
            detailliert förmlich förmlicher formell formeller informell locker lockerer professionell professioneller
            freundlich freundlicher höflich höflicher sachlich sachlicher ernst neutral einfach einfacher technisch
            kompliziert klar klarer direkt direkter konkret konkreter genau genauer steif persönlich salopp""",
        "noun": """emoji emojis smiley smileys markdown fett fettschrift fettdruck kursiv sternchen liste listen tabelle
            tabellen überschrift überschriften json yaml xml html csv fließtext prosa absatz absätze formatierung format
            füllwörter füllsätze einleitung floskeln entschuldigungen ausrufezeichen stichpunkte stichpunkten satz sätze
            sätzen wörter details erklärung erklärungen text ton stil zeile zeilen aufzählung""",
        "lang": "deutsch englisch spanisch französisch italienisch portugiesisch",
        "verb": """benutze benutz verwende verwend nutze nutz nimm schreib schreibe schreiben antworte antworten gib geben
            sprich sprechen sag mach mache machen sei bleib fass fasse fassen möchte will brauche bevorzuge hätte erklär
            erkläre halte halt rede""",
        "style": "benutze benutz verwende nutze nutz schreib schreibe antworte sprich sei mach fass fasse lass vermeide hör spar halte",
        "mark": """bitte kein keine keinen ohne nicht nur weniger mehr lieber statt stattdessen lass vermeide hör schluss zu
            kannst könntest etwas genug""",
        "bad": "falsch unrichtig inkorrekt verkehrt schlecht nutzlos unbrauchbar unsinn quatsch fehlerhaft kaputt verwirrend unklar blöd mist furchtbar schrecklich",
        "good": """perfekt super toll klasse prima großartig ausgezeichnet hervorragend wunderbar spitze genial gut schön
            richtig korrekt genau stimmt sauber cool exzellent top""",
        "thank": "danke dank dankeschön merci bedankt",
        "reply": "antwort antworten text erklärung version nachricht code ergebnis arbeit frage lösung nächste",
        "fill": """der die das den dem des ein eine einen einem einer es ist war sind waren sein ich du mir mich dir dich wir
            uns sie ihr ihn und oder aber so auch noch wieder viel viele zu sehr ganz etwas bisschen mal doch ja nein nur
            bitte in auf im mit für von an als kannst könntest würdest könnten sie können bist hat hast habe ist's nicht
            kein keine keinen ohne mehr weniger lieber jetzt schon wirklich leider hier da dann dass was wie viel weiter
            sich ab vielen besten schönen schön sehr alles geht ginge""",
        "ask": "was wie wer wen wem wessen wann wo warum wieso weshalb welche welcher welches ist sind hat haben gibt soll",
        "task": "schreib schreibe erkläre erklär liste nenne zeig zeige übersetze gib erstelle füge vergleiche beschreibe mach jetzt nun",
    },
    "french": {
        "adj": """court courte courts courtes bref brève brefs concis concise long longue longs longues détaillé détaillée
            formel formelle formels informel familier décontracté professionnel professionnelle poli polie sérieux neutre
            simple simples technique clair claire direct directe précis précise verbeux bavard succinct brièvement
            simplement soutenu""",
        "noun": """emoji emojis émoji émojis émoticônes smileys markdown gras italique astérisques liste listes tableau
            tableaux titre titres json yaml xml html csv prose paragraphe paragraphes format mise remplissage introduction
            excuses texte mots phrase phrases détail détails explication explications puces ligne lignes ton style""",
        "lang": "français anglais espagnol allemand italien portugais",
        "verb": """utilise utilisez écris écrivez réponds répondez répondre donne donnez parle parlez dis sois soyez fais
            faites mets mettez veux voudrais préfère besoin garde gardez explique être faire""",
        "style": "utilise utilisez réponds répondez parle parlez sois soyez évite évitez arrête arrêtez mets enlève supprime fais écris cesse",
        "mark": """plaît svp stp sans pas plus moins juste seulement trop arrête arrêtez évite évitez enlève supprime veux
            voudrais préfère peux pouvez pourrais pourriez en cesse assez aucun""",
        "bad": "faux fausse incorrect incorrecte mauvais mauvaise inexact erroné inutile nul nulle confus confuse horrible terrible moche",
        "good": """parfait parfaite super génial géniale excellent excellente formidable merveilleux magnifique bien bon
            bonne bravo exact exactement correct impeccable top nickel chouette cool""",
        "thank": "merci remercie mercis",
        "reply": "réponse réponses texte explication version message code résultat travail question suivante",
        "fill": """le la les l un une des du de d ce c cet cette ces ça cela est était sont c'est être je j tu t il elle on
            nous vous me m te se s y en et ou mais que qu à au aux avec pour par dans si très trop plus moins assez un peu
            encore toujours non oui pas ne n sans juste seulement sil te vous plaît svp stp peux pouvez pourrais pourriez
            aussi maintenant ici là beaucoup bien mal fait fois votre ta ton tes vos notre""",
        "ask": "quel quelle quels quelles qui que quoi comment quand où pourquoi combien est sont y peut puis dois",
        "task": "écris explique liste dis montre traduis donne crée ajoute résume compare décris continue poursuis maintenant",
    },
}

#: A polite "can you …?" is a request about the reply, not a question about the world. Regex, at the start of a sentence.
POLITE: dict[str, str] = {
    "english": r"(?:{pre})?(?:can|could|would|will) (?:you|it|we|this|that|i (?:get|have))",
    "spanish": r"(?:{pre})?(?:puedes|podrías|puede|podría|podrías)",
    "german": r"(?:{pre})?(?:kannst|könntest|würdest|können|könnten|würden|kann|geht)",
    "french": r"(?:{pre})?(?:peux|pouvez|pourrais|pourriez|peut|tu peux|tu pourrais|vous pourriez|est ce que tu peux)",
}

#: Words between a thank-you and the complaint that qualifies it.
BUT = r"(?:but|however|though|although|except|only|yet|pero|aunque|aber|jedoch|allerdings|nur|mais|par contre|cependant)"

PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "english": (
        Pattern(
            "too-form",
            J,
            r"^{pre}(?:too|overly|so) (?:damn )?(?:{adj})",
            "an adjective of form is in excess",
            3,
        ),
        Pattern(
            "too-anything",
            J,
            r"^{pre}too (?!bad|late|early|soon|funny|kind|good|true)\w+(?: for me| please)?$",
            "a whole sentence says only that something is in excess",
            1,
        ),
        Pattern(
            "too-much",
            J,
            r"^{pre}(?:too|so) (?:much|many|little|few)",
            "something of the reply is in excess",
            1,
        ),
        Pattern(
            "that-is-too",
            J,
            r"^(?:{pre})?that(?:'s| is| was) (?:way |far |a bit )?(?:too|not) (?!bad)",
            "'that' points at the reply",
        ),
        Pattern(
            "you-too", J, r"^{pre}you .*too (?:much|many|little|few|{adj})", "what you did was in excess"
        ),
        Pattern(
            "you-failed",
            J,
            r"^{pre}(?:that )?you (?:just |also |have |'ve |again |still |only |completely |totally |really |clearly )*(?:forgot|forget|missed|"
            r"ignored|misunderstood|misread|mixed|confused|skipped|left out|omitted|failed|repeated|contradict\w*|messed|"
            r"(?:got|have|had) .*wrong|made (?:\w+ )?(?:mistakes?|errors?|typos?|that up|it up|up)|didn't|did not|haven't|have not|keep|kept|"
            r"were supposed|should have|should've|shouldn't have|'re (?:being|still|wrong|not)|are (?:wrong|being|not|still)|"
            r"weren't|aren't|already|used the wrong|don't (?:have|need) to|always|never|invented)(?!\w)",
            "the second person is said to have failed",
        ),
        Pattern(
            "you-tense",
            J,
            r"^{pre}(?:your|the) (?:answer|reply|response|code|link|explanation|tone|style|formatting|text|list|numbers?|dates?|script|function|example) .*(?:{bad}|{adj}|isn't|is not|doesn't|does not|shows?|too)(?!\w)",
            "a property of your reply is named",
            4,
        ),
        Pattern(
            "i-asked",
            J,
            r"^{pre}i (?:only |just |specifically |already |clearly |actually |really |explicitly |never |didn't |did not )*"
            r"(?:(?:asked|ask)(?! (?:my|him|her|them|a|the|our|if))|said|meant|mean|told|tell|(?:wanted|want)(?<=wanted)(?! to (?:ask|know|tell|thank|buy|go|learn|say|let))|"
            r"needed(?! to)|requested|expected|specified|disagree|was (?:asking|hoping|looking|expecting|talking))(?!\w)(?!.* (?:she|he|they) )(?<!what i needed)(?<!what i wanted)(?<!what i meant)(?<!what i asked)(?<!what i expected)",
            "the person repeats what was asked for",
        ),
        Pattern(
            "i-would-rather",
            J,
            r"^{pre}i(?:'d| would)? (?:rather|prefer|much prefer|like)(?!\w).*(?:{adj}|{noun}|{lang}|instead)(?!\w)",
            "a preference about form",
            3,
        ),
        Pattern(
            "i-dislike-form",
            J,
            r"^{pre}i (?:really )?(?:don't|do not|didn't|did not|hate|dislike|can't stand)(?: (?:like|want|need|enjoy|care|see))?(?: \w+){0,4} (?:{noun}|{adj}|{reply}|this|that)(?!\w)",
            "dislike of the form or the reply",
            2,
        ),
        Pattern(
            "cannot-follow",
            J,
            r"^{pre}i (?:can't|cannot|don't|do not|didn't|couldn't) (?:really |even |quite )?(?:follow|parse|read|understand|get|see)(?: (?:this|that|it|your|what you|any|the))",
            "the reply did not get across",
            5,
        ),
        Pattern(
            "for-language",
            J,
            r"^{pre}(?:i )?(?:only )?(?:don't |cannot |can't |can not )?(?:speak|read|understand)(?: \w+)? (?:{lang})",
            "the language of the reply",
            1,
        ),
        Pattern(
            "it-is-bad",
            J,
            r"^{pre}(?:that|this|it|which|these|those|both|they|all|there|something|everything)(?:'s| is| was| are| were| looks?| seems?| sounds?| feels?| has)? (?:\w+ ){0,3}?(?:{bad})(?!\w)",
            "the reply is called wrong",
            5,
        ),
        Pattern("bad", J, r"^{pre}(?:an? |the )?(?:{bad})(?!\w)", "the reply is called wrong", 2),
        Pattern(
            "form-is-bad",
            J,
            r"^{pre}(?:{noun}) (?:\w+ ){0,3}?(?:{bad}|annoy\w*|distract\w*|show\w*|appear\w*|everywhere)(?!\w)",
            "something of the form is unwelcome",
            3,
        ),
        Pattern(
            "form-grates",
            J,
            r"^{pre}(?:{noun}) (?:make|drive|give|hurt|annoy|bother|confuse|distract)s? (?:me|my)(?!\w)",
            "something of the form is unwelcome",
            3,
        ),
        Pattern(
            "is-overdone",
            J,
            r"^{pre}(?:that|this|it|answer|reply|response|text|explanation|tone) ?(?:'s|is|was|sounds|seems|feels|reads|looks)? (?:\w+ )??(?:rather|pretty|a bit|a little|quite|awfully|incredibly|somewhat|kind of|very|really) (?:long|lengthy|wordy|verbose|chatty|stiff|casual|vague|generic|complicated|dense|repetitive|blunt|rude|cold|dry|flowery|robotic|condescending|technical|complex|informal)(?!\w)",
            "an adjective of form is in excess",
            3,
        ),
        Pattern(
            "a-bit-much",
            J,
            r"^{pre}(?:kinda|kind of|a bit|bit|a little|rather|pretty|somewhat) (?:long|short|wordy|verbose|chatty|stiff|casual|formal|vague|generic|complicated|dense|repetitive|blunt|rude|cold|dry|robotic|technical)(?: no| right)?$",
            "an adjective of form is in excess",
            0,
            True,
        ),
        Pattern(
            "your-reply-lacks",
            J,
            r"^{pre}your (?:{reply}) (?:ignor|miss|lack|contradict|omit|skip|assum|fail|repeat|mix|confus)\w*",
            "your reply is said to have failed",
        ),
        Pattern(
            "did-you-even",
            J,
            r"^{pre}did you (?:even|actually|really) (?:read|listen|look|check|understand|see)",
            "the second person is said to have failed",
            None,
            True,
        ),
        Pattern(
            "no-sense",
            J,
            r"^{pre}(?:makes? no sense|(?:different|wrong) (?:question|topic|thing)|beside the point|all over the place|nowhere near|far from)(?!\w)",
            "the reply is called wrong",
            5,
        ),
        Pattern("what-a-bad", J, r"^{pre}what an? (?:\w+ )?(?:{bad})", "the reply is called bad", 2, True),
        Pattern(
            "not-good",
            J,
            r"^(?!(?:\w+ )?(?:i am|i'm|we are|we're|my|he|she|they) ){pre}(?:not|isn't|is not|wasn't|aren't|weren't|'s not) (?:\w+ ){0,2}?(?:{good}|true|accurate|enough|appropriate|what|how|valid|needed|necessary|{noun}|{lang}|{adj})(?!\w)",
            "the reply lacks a quality",
            3,
        ),
        Pattern(
            "noun-is-not",
            J,
            r"^{pre}(?:\w+ )?(?:isn't|is not|aren't|are not|wasn't) (?:appropriate|right|correct|true|valid|necessary|needed|helpful|welcome)",
            "a part of the reply is refused",
            2,
        ),
        Pattern("qualifying", J, r"^{pre}except (?:that|for)", "praise is taken back in part"),
        Pattern(
            "no-that",
            J,
            r"^(?:no|nope|nah|wrong|hmm no|um no)(?! (?:thanks?|thank|problem|worries|idea|need|one|way|matter|more|it s fine|that s all|that s fine|i m (?:good|fine)|i don))(?: \w+)* (?:i|you|it|that|this|he|she|they|the|not|still|there)(?!\w)",
            "the sentence begins by denying the reply",
        ),
        Pattern(
            "does-not-work",
            J,
            r"^(?!.*\b(?:my|our|his|her|their|if|when)\b)(?:[\w]+ ){0,4}?(?:doesn't|does not|didn't|did not|don't|won't|isn't|is not|not|never) (?:even |really |actually |seem to |quite )?(?:work|working|compile|compiling|run|running|help|load|exist|match|solve|fix|add up|make sense)(?!\w)",
            "what was proposed failed",
            4,
        ),
        Pattern(
            "still-failing",
            J,
            r"^{pre}still (?:{bad}|fail\w*|crash\w*|not|the same|gett?\w*|gives?|too|no|doesn't|wrong)(?!\w)",
            "the fault is still there",
            4,
        ),
        Pattern(
            "same-error",
            J,
            r"same (?:error|problem|issue|mistake|result)(?: (?:as|again))?(?!\w)",
            "the fault is still there",
            4,
        ),
        Pattern(
            "error-seen",
            J,
            r"^(?!.*\b(?:my|our)\b){pre}(?:i|it|this|that|the|now|code|script|we)(?:'m| am)? ?(?:\w+ ){0,3}?(?:get|getting|got|gives|throws?|raises?|crash\w*|fails?|errors?)(?: .*(?:\w*error|exception|traceback|warning|crash|nothing|\d{3}))?(?!\w)",
            "what was proposed failed",
            5,
        ),
        Pattern(
            "should-be",
            J,
            r"^{pre}(?:it|this|that|there|answer|reply|output|which|{noun})(?:'s)? (?:should|must|has to|have to|needs to|ought to|was supposed to|is supposed to)(?: \w+){0,3} (?:be|have|use|not|say|{noun}|{adj}|{lang})(?!\w)",
            "how the reply ought to be",
            5,
        ),
        Pattern(
            "would-have-been",
            J,
            r"would(?:'ve| have) (?:been|liked|preferred|expected)(?!\w)",
            "a better reply is named",
            4,
        ),
        Pattern(
            "length-idiom",
            J,
            r"^{pre}(?:wall of text|(?:reads?|sounds?) like an? \w+|looks? like an? (?:chat ?bot|bot|robot|machine|computer|ai)|tl ?dr|(?:get|come) (?:straight |right )?to (?:the )?point|cut to the chase|word salad|brevity)(?!\w)",
            "an idiom about length or tone",
            4,
        ),
        Pattern(
            "why-form",
            J,
            r"^{pre}why (?:so (?:much|many|{adj})|(?:all )?(?:the |this |these )?(?:{noun}|{lang})|(?:do|are|did|have) (?:you|i) (?:keep|get|see|always|still|so|using|use|writ\w+|answer\w*|add\w*)(?: .*(?:{noun}|{lang}|{adj}))|(?:in|is this in|is it in|is this|is it|not) .*(?:{lang}|{noun}|{adj}))(?!\w)",
            "a why-question about the reply's form",
            4,
            True,
        ),
        Pattern(
            "form-again",
            J,
            r"^{pre}(?:{noun}) again(?: please)?$",
            "something of the form has come back",
            0,
            True,
        ),
        Pattern(
            "was-in-language",
            J,
            r"^{pre}(?:{lang}) why not (?:in )?(?:{lang})(?: please)?$",
            "the language of the reply",
            0,
            True,
        ),
        Pattern(
            "program-needs",
            I,
            r"^(?:my|our|the) (?:code|script|tool|program|parser|app|system) (?:only )?(?:needs?|reads?|wants?|expects?|takes?|accepts?|understands?) (?:only |just )?(?:{noun})(?: only| please)?$",
            "what the reply is for can only take this form",
            1,
        ),
        Pattern(
            "leave-that-out",
            I,
            r"^{pre}leave (?:it|them|those|these|that|this|all (?:of )?(?:it|them)) out(?: please)?$",
            "something of the reply is to go",
            1,
        ),
        Pattern(
            "where-form",
            J,
            r"^{pre}where (?:are|is|did) (?:the |my |your )?(?:\w+ )?(?:{noun})(?: please| go| gone)?$",
            "something of the form is missing",
            1,
            True,
        ),
        Pattern(
            "did-i-not",
            J,
            r"^{pre}(?:didn't|did) i (?:not )?(?:say|ask|tell|mention|specify)",
            "the person repeats what was asked for",
            None,
            True,
        ),
        Pattern(
            "your-name",
            I,
            r"^(?:(?!who|what|is|was|which|if|does)\w+ ){0,5}?your (?:\w+ )?name(?: for me)?(?:'s| is| should be| shall be| will be| must be) (?:now |not |no longer )?(?!{fill}|{good}|{bad}|{adj})\w+",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "you-are-named",
            I,
            r"^(?:(?!who|what|is|was|which|does|if|when|how)\w+ ){0,5}?(?:if )?you(?:'re| are| were| shall be| will be| should be) (?:now |not )?(?:called|named) \w+",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "call-yourself",
            I,
            r"^(?:\w+ ){0,9}?(?:call|called|calling|name|named|naming|rename) yourself (?!{fill})\w+",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "present-yourself",
            I,
            r"^(?:\w+ ){0,9}?(?:introduced?|introducing|present|presented|presenting|identify|refer to|referred to|referring to) yourself (?:\w+ )??(?:as|by|with|under|like|that way|so)(?!\w)",
            "how the assistant is to speak of itself",
            sets_scene=True,
        ),
        Pattern(
            "when-asked",
            I,
            r"^(?!.*\b(?:my|our|his|her|their) name\b)(?!.*\b(?:what|how|why) (?:do|does|did|would|should|to|is|are)\b)(?=.*\b(?:want|hear|expect|say|answer|reply|respond|tell|give|use|be|mention|state|call)(?!\w)).*\b(?:when|whenever|if)(?: (?:i|we|you|people|someone|somebody|anyone|anybody|they))? (?:are |is |re )?ask(?:ed|s)?(?: you)?(?: for| about)? (?:(?:who|what) you are|(?:what )?your name)(?!\w)",
            "how the assistant is to speak of itself",
            in_question=True,
            sets_scene=True,
        ),
        Pattern(
            "name-for-yourself",
            I,
            r"^(?:\w+ ){0,5}?(?:use|take|adopt|keep|choose) (?:\w+ ){1,4}(?:for yourself|as your name)(?!\w)",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "go-by",
            I,
            r"^{pre}(?:i (?:want|need|like|prefer|would like|would prefer|'d like|'d prefer) (?:for )?)?you (?:should |must |can |will |have )?(?:to )?go by (?!car|bus|train|foot|plane|bike|boat|ship|tram|taxi)(?:the name )?\w+",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "say-you-are",
            I,
            r"^(?:\w+ ){0,7}?(?:say|answer|reply|respond|state|tell (?:me|us|people|them|others|everyone|everybody))(?: that)? (?:you(?:'re| are)|your name(?:'s| is)) \w+",
            "how the assistant is to speak of itself",
            sets_scene=True,
        ),
        Pattern(
            "speak-as",
            I,
            r"^(?:\w+ ){0,7}?(?:speak|spoke|talk|talked|answer|reply|respond|sign)(?: (?:me|to me|off|it|them|(?:your|all|the) \w+))? as (?!{fill}|{adj}|soon|fast|quickly|usual|before|possible)\w+",
            "as whom the assistant is to speak",
            sets_scene=True,
        ),
        Pattern(
            "standing-order",
            I,
            r"^(?:(?:please|and|so|ok|okay|well|but) )*(?:from now on|from here on|in (?:the )?future|going forward|next time|(?:every|each) time|always|whenever i ask(?: you)?) (?:(?:please|just|only|you|should|must|shall|can|could|always|to|i|want|would|like|need) )*(?:be|answer|reply|respond|speak|talk|write|use|say|end|start|begin|address|greet|introduce|sign|cite|mention|ask|include|add|put|call yourself)(?!\w)",
            "a standing order to the assistant",
            sets_scene=True,
        ),
        Pattern(
            "prohibition",
            I,
            r"^{pre}(?:don't|do not|never|stop|quit|enough(?: with| of)?)(?! (?:worry|know|mind|bother|think|care|been|had|heard|seen|have (?!to)|want|need|like|understand|sign|by))(?: \w+)+",
            "a standing order to the assistant",
        ),
        Pattern(
            "remove-form",
            I,
            r"^{pre}(?:no|without|skip|drop|cut|avoid|remove|lose|omit|ditch|leave out|less|fewer|spare me)(?: more)?(?: with| using| the| all| any| those| so many| your| this| that| out| on)*(?: \w+)? (?:{noun}|{adj}|{lang}|smileys|semicolons)(?!\w)",
            "something of the form is to go",
            3,
        ),
        Pattern("fewer", I, r"^{pre}(?:fewer|less) \w+(?: please)?$", "something is to become less"),
        Pattern(
            "form-in",
            I,
            r"^{pre}(?:{style}|please|want|need|give|write)(?: \w+){0,3} (?:in|into|as|with|to) (?:an? |the )?(?:\w+ )?(?:{noun}|{lang}|{adj}(?: language| words| terms| tone| way)?)(?! (?:of|about|for|from|comparing|with))(?!\w)",
            "the form of the reply is ordered",
            1,
        ),
        Pattern(
            "simpler-words",
            I,
            r"(?:simple|simpler|plain|plainer|easier|normal|other|your own) (?:language|words|terms|english)(?! (?:of|for)\w)",
            "the form of the reply is ordered",
            2,
        ),
        Pattern(
            "more-depth",
            I,
            r"(?:in|into|with|needs?|want|give)(?: me)? (?:much |a bit |a little |some )?(?:more|less) (?:{noun})(?! (?:about|on|of))(?!\w)",
            "the form of the reply is ordered",
            1,
        ),
        Pattern(
            "make-it",
            I,
            r"^{pre}(?:make|keep|be|stay|sound|write|put|say|get|have|act)(?: it| this| that| your \w+| them| things| \w+ answers?)?(?: a (?:bit|little|lot)| much| way| far| slightly)?(?: more| less| as| very| too| so)? (?:{adj})(?!\w)(?! (?:poem|story|email|essay|history|version|list|table|song|letter|text|summary))",
            "the form of the reply is ordered",
            2,
        ),
        Pattern(
            "redo",
            I,
            r"^{pre}(?:(?:try|do|check|write|answer|explain|say|read|look)(?: it| that| this)? (?:again|over)|redo|rewrite|rephrase|reword|undo|revert|fix|once more|start over|double check)(?! (?:my|a|an|the following)\b)(?!\w)",
            "the reply is to be done again",
            3,
        ),
        Pattern(
            "just-the",
            I,
            r"^{pre}(?:give me |tell me |show me )?(?:just|only) (?:give |tell |show |want |need )?(?:me )?(?:the |a |an |one )*(?:answer|number|result|code|name|facts?|gist|essentials|basics|solution)(?! (?:of|to|for|is|was))(?!\w)",
            "the rest of the reply was too much",
            3,
        ),
        Pattern(
            "use-this",
            I,
            r"^(?>(?:please|always|just|only|better|and|then|so|now) )*(?:use|stick to) (?!.* to \w+)\w+(?: \w+){0,5}$",
            "a standing order to the assistant",
            4,
        ),
        Pattern(
            "leave-out",
            I,
            r"^{pre}(?:you (?:can|may|could) )?(?:leave|skip|drop|omit) (?:\w+ ){1,4}out$",
            "something of the reply is to go",
        ),
        Pattern(
            "explain-otherwise",
            I,
            r"^{pre}explain (?:it|this|that) (?:like|as|so that|in|more|again|to me)(?!\w)",
            "the reply is to be done again",
            4,
        ),
        Pattern(
            "half",
            I,
            r"^{pre}(?:half|twice|a third) (?:as|of|the) (?:{adj}|length|size|that|this)(?!\w)",
            "the reply is to have another length",
            3,
        ),
        Pattern(
            "more-like",
            I,
            r"^{pre}(?:make|sound|write|read|talk|speak|put|be)(?: \w+){0,3} (?:more|less) like",
            "the tone of the reply is ordered",
            3,
        ),
        Pattern(
            "harder",
            I,
            r"^{pre}(?:try|do|think|work|look) (?:harder|better|more carefully|properly)(?!\w)",
            "the reply is to be done again",
            1,
        ),
        Pattern(
            "say-more",
            I,
            r"^{pre}(?:say|write|explain|give) (?:me )?(?:a (?:bit|little|lot) |much |some )?(?:more|less)(?: please)?$",
            "the reply is to be longer",
            0,
        ),
        Pattern(
            "see-form",
            J,
            r"^{pre}i (?:can |only |just |still )*see (?:\w+ )?(?:{noun})(?: everywhere| instead| again| all over.*| in .*)",
            "something of the form is unwelcome",
            3,
        ),
        Pattern(
            "reshape",
            I,
            r"^{pre}(?:simplify|shorten|trim|condense|elaborate|cut|tone)(?: it| this| that| your \w+| everything| down| back| short|$)",
            "the reply is to be reshaped",
            3,
        ),
        Pattern(
            "instead",
            I,
            r"^(?!{pre}(?:let|how|what|where|which)\b)(?:\w+ )+?(?:instead(?: of)?|rather than)(?!\w)",
            "one thing is to stand for another",
        ),
        Pattern(
            "wanted-else",
            I,
            r"^{pre}(?:i )?(?:only |just )?(?:need|want)(?: it| this| that)(?: to be| in| as| with| for)(?!\w).*(?:{noun}|{lang}|{adj})(?!\w)",
            "the form of the reply is ordered",
            2,
        ),
        Pattern(
            "forgotten",
            J,
            r"(?:you forgot|you missed|you left|missing from your|is missing|are missing)",
            "a gap is named",
            6,
        ),
        Pattern(
            "thanks",
            P,
            r"^(?!no (?:thanks?|thank) ?(?:you)?$){pre}(?:many |much |big |huge |ok |okay )*(?:{thank})(?! to (?!you))(?! in advance)(?! for nothing)(?! you for nothing)(?!\w)",
            "gratitude",
            6,
        ),
        Pattern(
            "praise",
            P,
            r"^(?!right$)(?>(?:ok|okay|yes|yeah|oh|wow|ah|very|so|really|that|this|it|s|is|was|looks?|sounds?|much|quite|absolutely|just|now|you|re|your|the|all|an?|pretty|truly|answer|reply|simply|works?|even|well) )*(?:{good})(?> (?:{good}|{thank}|{reply}|stuff|enough|you|so|much|a|lot|yes|and|indeed|again|catch|call|what|i|needed|wanted|was|the|it|like|for|asked|looking|to|know|done|very|me|that|this|how|now|way)(?!\w))*$",
            "approval",
        ),
        Pattern(
            "success",
            P,
            r"^{pre}(?:(?:that|it|this|all|everything|which|index|now) )?(?:\w+ )?(?:works(?: now)?(?: like a charm| great| fine| perfectly| well| nicely)|works(?: for (?:me|us))?$|worked$|it works|fixed it|solved it|did it|did the trick|helps|helped|nailed it|runs$|matches$|it runs|spot on|makes sense|well done|love it|lifesaver|much obliged|loved it)(?!\w)",
            "what was proposed worked",
            4,
        ),
        Pattern(
            "liked",
            P,
            r"^{pre}i (?:really |do |quite |very much )?(?:like|love|enjoyed|appreciate)(?: \w+)? (?:this|that|it|your|the|these)(?!\w)",
            "approval",
            1,
        ),
        Pattern(
            "confirm",
            P,
            r"^{pre}(?:that's it|that is it|that's (?:exactly|precisely|just)|exactly (?:what|the|how|right|as)|just what i|was missing|this is exactly)(?!\w)",
            "the reply is confirmed",
            4,
        ),
    ),
    "spanish": (
        Pattern(
            "demasiado",
            J,
            r"^{pre}(?:demasiad[oa]s?|muy|tan) (?:{adj}|{noun})",
            "an adjective of form is in excess",
            2,
        ),
        Pattern(
            "demasiado-de",
            J,
            r"^{pre}(?:demasiad[oa]s?|tantos?|tantas?) \w+$",
            "something of the reply is in excess",
            1,
        ),
        Pattern(
            "es-falso",
            J,
            r"^{pre}(?:eso |esto |la respuesta )?(?:es|está|estaba|era|son) (?:\w+ )?(?:{bad})(?!\w)",
            "the reply is called wrong",
            2,
        ),
        Pattern(
            "no-es",
            J,
            r"^{pre}(?:no (?:es|era|está|son)) (?:\w+ )?(?:{good}|cierto|verdad|lo que|así|{adj}|{noun}|eso)(?!\w)",
            "the reply lacks a quality",
            3,
        ),
        Pattern(
            "eso-no-es",
            J,
            r"^{pre}(?:eso|esa|ese|esto|esta|este) no (?:es|son|era)(?!\w)",
            "the reply is denied",
        ),
        Pattern(
            "te-equivocas",
            J,
            r"(?:^|\b)(?:te (?:has )?(?:equivocaste|equivocas|equivocado|olvidaste|olvidado|confundiste|confundes|faltó|falta)|(?:has|habías) (?:olvidado|ignorado|confundido)|olvidaste|no (?:me )?(?:has|habías) (?:\w+)|no (?:respondiste|entendiste|contestaste|me entiendes)|sigues|siempre (?:usas|pones|escribes))(?!\w)",
            "the second person is said to have failed",
            4,
        ),
        Pattern(
            "te-pedi",
            J,
            r"^{pre}(?:te |yo |solo |ya |ya te )*(?:pedí|pedía|dije|quería|quise decir|me refería|esperaba|necesitaba|había pedido|he pedido|hablaba de)(?!\w)(?! (?:saber|preguntar))",
            "the person repeats what was asked for",
        ),
        Pattern(
            "no-funciona",
            J,
            r"^(?!.*\b(?:mi|mis)\b){pre}(?:\w+ ){0,2}?(?:no (?:me )?(?:funciona|funcionó|sirve|compila|entiendo|existe|va))(?!\w)",
            "what was proposed failed",
            4,
        ),
        Pattern(
            "prefiero",
            J,
            r"^{pre}(?:prefiero|preferiría|me gustaría|no me gusta|no me gustan|no quiero|odio|no necesito)(?!\w).*(?:{adj}|{noun}|{lang}|usted|tu|esto|eso|así|respuesta)(?!\w)",
            "a preference about form",
            3,
        ),
        Pattern(
            "no-opener",
            J,
            r"^no (?:yo|eso|es|la|el|lo|quería|digo|me|te)(?! (?:gracias))(?!\w)",
            "the sentence begins by denying the reply",
        ),
        Pattern(
            "por-que",
            J,
            r"^{pre}por qué (?:tan|tanto|tantos|en|usas|siempre|sigues|me)(?!\w).*(?:{adj}|{noun}|{lang})",
            "a why-question about the reply's form",
            3,
            True,
        ),
        Pattern(
            "tu-nombre",
            I,
            r"^(?:\w+ ){0,4}?(?:tu nombre (?:es|será|debe ser)|(?:te|que te) (?:llamas|llames|llamarás)|llámate|hazte llamar) (?!{fill})\w+",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "presentate",
            I,
            r"^(?:\w+ ){0,5}?(?:preséntate como|te presentes como|presentarte como|(?:di|digas|decir) que (?:eres|te llamas|tu nombre)|responde como|habla como) \w+",
            "how the assistant is to speak of itself",
            sets_scene=True,
        ),
        Pattern(
            "prohibicion",
            I,
            r"^{pre}(?:no (?:uses|use|pongas|escribas|hables|repitas|inventes|añadas|me (?:hables|llames|digas|trates|tutees)|hagas|des|incluyas)|deja de|dejá de|para de|basta(?: ya)? de|nada de|evita|quita|elimina|omite|sáltate)(?!\w)",
            "a standing order to the assistant",
        ),
        Pattern(
            "otra-vez",
            I,
            r"^{pre}(?:(?:inténtalo|hazlo|prueba|escríbelo|otra vez|de nuevo|vuelve a|corrige|corrígelo|arréglalo|reescribe|reescríbelo|revisa|revísalo|acórtalo|resúmelo|simplifica|simplifícalo|hazlo más))(?!\w)",
            "the reply is to be done again",
            3,
        ),
        Pattern(
            "en-vez",
            I,
            r"^(?!{pre}(?:qué|cómo|cuál)\b).*(?:en vez de|en lugar de|mejor en|en cambio)(?!\w)",
            "one thing is to stand for another",
        ),
        Pattern("gracias", P, r"^{pre}(?:{thank})(?! a )(?! de antemano)(?!\w)", "gratitude", 5),
        Pattern(
            "aprobacion",
            P,
            r"^(?>(?:muy|qué|eso|esto|está|es|todo|así|lo|la|sí|ahora|tan|una|un|más) )*(?:{good})(?> (?:{good}|{thank}|{reply}|lo|que|necesitaba|quería|muy|eso|es|así|trabajo)(?!\w))*$",
            "approval",
        ),
        Pattern(
            "exito",
            P,
            r"^{pre}(?:ya |ahora |así )?(?:(?<!no )funciona(?! mal)|funcionó|sirvió|me sirve|lo que (?:necesitaba|quería|buscaba)|buen trabajo)(?!\w)",
            "what was proposed worked",
            3,
        ),
    ),
    "german": (
        Pattern(
            "zu-form",
            J,
            r"^{pre}(?:viel |etwas |ein bisschen |mir |einfach )*zu (?:{adj}|viel|viele|wenig|wenige)(?!\w)",
            "an adjective of form is in excess",
            2,
        ),
        Pattern(
            "ist-falsch",
            J,
            r"^{pre}(?:das |die antwort |dies |es )?(?:ist|war|sind|klingt|wirkt)(?: \w+){0,2} (?:{bad})(?!\w)",
            "the reply is called wrong",
            2,
        ),
        Pattern("falsch", J, r"^{pre}(?:{bad})(?!\w)", "the reply is called wrong", 2),
        Pattern(
            "stimmt-nicht",
            J,
            r"(?:^|\b)(?:(?:stimmt|passt|hilft|gefällt|reicht|klappt|geht|funktioniert|läuft|kompiliert|existiert)(?: \w+){0,3} nicht|nicht (?:richtig|korrekt|wahr|gut|hilfreich|das was|was ich|\w+ genug|ganz))(?!\w)",
            "the reply lacks a quality",
            3,
        ),
        Pattern(
            "das-ist-nicht",
            J,
            r"^{pre}das (?:ist|war|sind) (?:doch |aber |leider |einfach )?(?:nicht|kein|keine)(?!\w)(?! schlecht)",
            "the reply is denied",
        ),
        Pattern("fehlt", J, r"^{pre}(?:da |es |hier |mir )*fehl(?:t|en)(?!\w)", "a gap is named", 3),
        Pattern(
            "nicht-funktioniert",
            J,
            r"^{pre}(?:funktioniert|geht|klappt|läuft) (?:\w+ ){0,2}?nicht(?!\w)",
            "what was proposed failed",
            2,
        ),
        Pattern(
            "nicht-gefragt",
            J,
            r"(?:habe? ich (?:\w+ )?nicht (?:gefragt|gemeint|gewollt|gesagt|verlangt)|ich habe? (?:doch |nur |nach |dich |schon |bereits )?.*(?:gefragt|gebeten|gesagt|gemeint|geschrieben)$)",
            "the person repeats what was asked for",
            6,
        ),
        Pattern(
            "ich-wollte",
            J,
            r"^(?!.*\b(?:genau|exakt) das\b){pre}(?:ich )?(?:nur |doch )?(?:wollte|meinte|hatte|bat|erwartete|sagte|brauchte|hätte)(?! (?:fragen|wissen))(?! .*(?:fragen|wissen)$)(?! (?:er|sie) )(?!\w)(?= )",
            "the person repeats what was asked for",
            5,
        ),
        Pattern(
            "du-hast",
            J,
            r"^{pre}(?:du |(?=(?:hast|bist|solltest|sollst) du))(?:hast|bist|vergisst|ignorierst|wiederholst|benutzt|verwendest|schreibst|sollst|solltest)(?: .*(?:vergessen|übersehen|ignoriert|falsch|verwechselt|missverstanden|nicht|kein|keine|schon|immer|wieder|ausgelassen|geirrt|verrechnet))(?!\w)",
            "the second person is said to have failed",
        ),
        Pattern(
            "ich-mag-nicht",
            J,
            r"^{pre}ich (?:mag|will|möchte|brauche|verstehe|bevorzuge)(?!\w).*(?:nicht|kein|keine|keinen|{adj}|{noun}|{lang}|lieber)(?!\w)",
            "dislike of the form or the reply",
            2,
        ),
        Pattern(
            "nein",
            J,
            r"^(?:nein|nee|ne) (?:ich|das|du|es|der|die|nicht|so)(?! (?:danke))(?!\w)",
            "the sentence begins by denying the reply",
        ),
        Pattern(
            "warum",
            J,
            r"^{pre}(?:warum|wieso) (?:so|auf|immer|die|diese|benutzt|schreibst|antwortest|redest|sprichst)(?!\w).*(?:{adj}|{noun}|{lang}|viel|viele)",
            "a why-question about the reply's form",
            2,
            True,
        ),
        Pattern(
            "dein-name",
            I,
            r"^(?:\w+ ){0,4}?(?:dein (?:\w+ )?name (?:ist|sei|soll|lautet)|(?:ab jetzt|ab sofort|von nun an|von jetzt an|jetzt|nun|künftig) heißt du|du (?:heißt|sollst|wirst)(?: (?:ab jetzt|jetzt|nun|ab sofort|von nun an))?(?= \w+(?: heißen)?$)|nenne? dich|bezeichne dich|stelle? dich(?: \w+){0,3} (?:als|mit))(?!\w)(?! (?:{fill})$)(?= \w+)",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "dich-nennst",
            I,
            r"^(?:\w+ ){0,5}?(?:dass )?du dich (?:(?:\w+ ){1,3}(?:nennst|nennen)|als (?:\w+ ){1,3}(?:vorstellst|vorstellen))(?!\w)",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "sag-du-bist",
            I,
            r"^{pre}(?:sag|sage|antworte|antworten)(?: \w+){0,2}? (?:dass )?(?:du (?:bist|heißt)|dein name|du \w+ (?:bist|heißt))(?!\w)",
            "how the assistant is to speak of itself",
            sets_scene=True,
        ),
        Pattern(
            "verbot",
            I,
            r"^{pre}(?:hör (?:bitte )?auf|lass (?:bitte )?(?:die|das|den|doch|bitte)|vermeide|schluss mit|genug mit|spar dir|verzichte)(?!\w)",
            "a standing order to the assistant",
        ),
        Pattern(
            "tu-nicht",
            I,
            r"^{pre}(?:\w+ )(?:mich |mir |bitte |das |die |den |immer |so )*(?:nicht(?: mehr| immer| so)?|kein|keine|keinen)(?:$| \w+$| \w+ \w+$)",
            "a standing order to the assistant",
            2,
        ),
        Pattern(
            "nochmal",
            I,
            r"^{pre}(?:versuch|versuche|mach|schreib|prüf|prüfe)? ?(?:es |das )?(?:bitte )?(?:noch ?mal|nochmals|noch einmal|neu|korrigiere|korrigier|überarbeite|kürze|kürz|vereinfache)(?!\w)",
            "the reply is to be done again",
            2,
        ),
        Pattern(
            "statt",
            I,
            r"^(?!{pre}(?:was|wie|welche)\b).*(?:stattdessen|statt|anstatt|anstelle)(?!\w)",
            "one thing is to stand for another",
        ),
        Pattern(
            "danke",
            P,
            r"^{pre}(?:vielen |besten |schönen |herzlichen |tausend )*(?:{thank})(?! im voraus)(?!\w)",
            "gratitude",
            5,
        ),
        Pattern(
            "zustimmung",
            P,
            r"^(?>(?:sehr|ganz|das|ist|war|wirklich|so|ja|echt|oh|wow|jetzt|alles|genau|ach|eine?) )*(?:{good})(?> (?:{good}|{thank}|{reply}|so|das|wollte|ich|brauchte|was|gemacht|erklärt|gesucht|habe|wie|es|soll|sein)(?!\w))*$",
            "approval",
        ),
        Pattern(
            "erfolg",
            P,
            r"^{pre}(?:jetzt |nun |es |das |damit |so )*(?:(?:klappt|funktioniert|läuft|geht|passt|stimmt|hilft|hat (?:geholfen|geklappt|funktioniert))(?! .*\b(?:nicht|kaum|nie)\b)(?: es| jetzt| alles| mir| weiter| so| super| gut| perfekt| prima)*$)",
            "what was proposed worked",
            1,
        ),
    ),
    "french": (
        Pattern(
            "trop",
            J,
            r"^{pre}(?:beaucoup |bien |un peu )*trop (?:de |d )?(?:{adj}|{noun}|de \w+)(?!\w)",
            "an adjective of form is in excess",
            2,
        ),
        Pattern(
            "c-est-faux",
            J,
            r"^{pre}(?:c est|c était|ce sont|est|était|ta réponse est|cela est)(?: \w+){0,2}? (?:{bad})(?!\w)",
            "the reply is called wrong",
            2,
        ),
        Pattern("faux", J, r"^{pre}(?:{bad})(?!\w)", "the reply is called wrong", 2),
        Pattern(
            "pas-bon",
            J,
            r"(?:n est|n était|c est|est|ne suis|ce n est) (?:\w+ )?pas (?:\w+ )?(?:{good}|vrai|juste|ce que|ça|assez|{adj}|{noun}|en)(?!\w)",
            "the reply lacks a quality",
            4,
        ),
        Pattern("il-manque", J, r"^{pre}(?:il |y )*manque(?!\w)", "a gap is named", 3),
        Pattern(
            "tu-as-oublie",
            J,
            r"(?:^|\b)(?:tu|vous)(?: m| t| vous| n| ne| l)?(?: as| avez| es| êtes)? (?:\w+ )?(?:oublié|oubliez|oublies|ignoré|confondu|confonds|trompé|trompes|manqué|répété|mélangé|mal|toujours|réponds pas|compris|continues)(?!\w)",
            "the second person is said to have failed",
            5,
        ),
        Pattern(
            "je-voulais",
            J,
            r"^{pre}(?:je |j )(?:ne |n )?(?:voulais|avais demandé|ai demandé|demandais|parlais|ai dit|attendais|avais dit|pensais à|ai besoin d|cherchais)(?! (?:savoir|demander|te demander))(?!\w)",
            "the person repeats what was asked for",
        ),
        Pattern(
            "je-prefere",
            J,
            r"^{pre}je (?:préfère|préférerais|n aime pas|ne veux pas|déteste|ne comprends pas|voudrais|ne parle)(?!\w).*(?:{adj}|{noun}|{lang}|ça|cela|réponse|tu|vous|ta|ce|cette)(?!\w)",
            "a preference about form",
            2,
        ),
        Pattern(
            "marche-pas",
            J,
            r"^(?!.*\b(?:mon|ma|mes)\b)(?:\w+ ){0,3}?(?:ne |n )?(?:marche|fonctionne|existe|compile|aide|va|marche) (?:toujours )?(?:pas|plus)(?!\w)",
            "what was proposed failed",
            3,
        ),
        Pattern(
            "non",
            J,
            r"^non (?:je|j|c|ce|tu|vous|il|elle|ça|pas|le|la)(?!\w)(?! merci)",
            "the sentence begins by denying the reply",
        ),
        Pattern(
            "pourquoi",
            J,
            r"^{pre}pourquoi (?:si|tant|en|tu|toujours|autant|ces|les|des)(?!\w).*(?:{adj}|{noun}|{lang})",
            "a why-question about the reply's form",
            3,
            True,
        ),
        Pattern(
            "ton-nom",
            I,
            r"^(?:\w+ ){0,4}?(?:(?:ton|votre) (?:nom|prénom) (?:est|c est|sera|doit être)|(?:tu t|vous vous) (?:appelles|appelez|appelleras|appelais)|(?:que tu t|que vous vous) (?:appelles|appeliez)|appelle toi|appelez vous|nomme toi|fais toi appeler) (?!{fill})\w+",
            "the assistant is given a name",
            sets_scene=True,
        ),
        Pattern(
            "presente-toi",
            I,
            r"^(?:\w+ ){0,5}?(?:(?:présente toi|présentez vous|te présentes|vous présentiez|te présenter) (?:\w+ )??(?:comme|en tant|sous|ainsi)|(?:dis|dises|dites|dire) que (?:tu (?:es|t appelles)|vous (?:êtes|vous appelez)|ton nom))(?!\w)",
            "how the assistant is to speak of itself",
            sets_scene=True,
        ),
        Pattern(
            "interdiction",
            I,
            r"^{pre}(?:arrêtez?|cessez?|évitez?|ne .* (?:pas|plus|jamais)|n \w+ (?:pas|plus|jamais)|plus (?:de|d) |pas (?:de|d) |enlève|supprime|laisse tomber|assez (?:de|d) )(?!\w)?(?:.*)",
            "a standing order to the assistant",
            3,
        ),
        Pattern(
            "refais",
            I,
            r"^{pre}(?:refais|refaites|réessaie|réessaye|recommence|réécris|corrige|reformule|raccourcis|simplifie|vérifie|encore une fois|essaie encore)(?!\w)",
            "the reply is to be done again",
            3,
        ),
        Pattern(
            "plutot",
            I,
            r"^(?!{pre}(?:que|quel|comment|qu)\b).*(?:plutôt que|au lieu de|à la place|plutôt)(?!\w)",
            "one thing is to stand for another",
        ),
        Pattern(
            "merci",
            P,
            r"^{pre}(?:mille |grand |un grand )*(?:{thank})(?! d avance)(?! par avance)(?!\w)",
            "gratitude",
            4,
        ),
        Pattern(
            "approbation",
            P,
            r"^(?>(?:c|est|très|ça|tout|vraiment|oui|oh|c'est|trop|bien|une|un|ah|super) )*(?:{good})(?> (?:{good}|{thank}|{reply}|ça|c|est|ce|que|je|voulais|cherchais|travail|joué|fait|il|me|fallait)(?!\w))*$",
            "approval",
        ),
        Pattern(
            "succes",
            P,
            r"^{pre}(?:ça |cela |maintenant |là |c est |tout )*(?:(?:marche|fonctionne|aide)(?! (?:pas|plus|toujours pas))(?: bien| maintenant| très bien| parfaitement| super)*$|(?:a marché|m a aidé|exactement ce que|tout à fait ça))(?!\w)",
            "what was proposed worked",
            3,
        ),
    ),
}

#: What is told by its words alone, in languages that have no word classes here. No slots.
ANY_LANGUAGE: tuple[Pattern, ...] = (
    Pattern(
        "il-tuo-nome",
        I,
        r"(?:il tuo nome e|ti chiami|chiamati|presentati come|che ti chiami) \w+",
        "Italian: the assistant is given a name",
        sets_scene=True,
    ),
    Pattern(
        "o-teu-nome",
        I,
        r"(?:(?:teu|seu) nome (?:é|será)|chama te|chame se|apresenta te como|apresente se como|(?:você|tu) (?:se|te) chamas?) \w+",
        "Portuguese: the assistant is given a name",
        sets_scene=True,
    ),
    Pattern(
        "je-naam",
        I,
        r"(?:(?:je|jouw) naam is|noem jezelf|(?:vanaf nu|voortaan|nu) heet je|stel jezelf voor als|je heet) \w+",
        "Dutch: the assistant is given a name",
        sets_scene=True,
    ),
    Pattern(
        "tebya-zovut",
        I,
        r"(?:тебя зовут|тво[её] имя|называй себя|называйся|представляйся|представься как) \w+",
        "Russian: the assistant is given a name",
        sets_scene=True,
    ),
    Pattern(
        "ni-de-mingzi",
        I,
        r"(?:你的名字(?:是|叫)|(?:^|\W)你叫|叫自己|称呼自己为|自称)(?!什么|啥|甚么)\w+",
        "Chinese: the assistant is given a name",
        sets_scene=True,
    ),
    Pattern(
        "anata-no-namae",
        I,
        r"(?:あなたの名前は(?!なん|何)|と名乗って)",
        "Japanese: the assistant is given a name",
        sets_scene=True,
    ),
)

#: Somebody who asks for a name gets one as an answer, not as a complaint. Regex, over the last question of a reply.
ASKS_FOR_A_NAME = r"\b(?:names?|call(?:ed)?|address|who|heiße\w*|nenne\w*|nombre|llam\w+|nom|appel\w+)\b"

#: "You are Ada." Regex over the text as written: only the capital tells a name from praise, and only a name that ends its
#: clause is one ("You are SQL expert" is not).
YOU_ARE = (
    r"^(?:(?:no|nope|nein|non|but|and|please|remember(?: that)?|i (?:said|told you)|pero|aber|mais)[,:]? )?"
    r"(?:you(?:['’]re| are)|du bist|(?:tú )?eres|tu es|vous êtes|tu sei|você é|jij bent|je bent|ты|你是)"
    r"(?: (?:now|not|jetzt|ahora|maintenant))? (?P<name>(?-i:[^\W\d_a-zß-öø-ÿ][\w'’-]*)(?: (?-i:[^\W\d_a-zß-öø-ÿ][\w'’-]*)){0,2})"
    r"\s*(?:[.!…,;:]|$|from now on|(?:and )?not )"
)

#: What makes a scene to be played of a name, over the folded message.
SCENE = (
    r"\b(?:act as|pretend|role ?play|imagine|suppose|let s play|play the|and you (?!(?:should|must|are|re|shall|will|can|may|have|need|know|keep(?! an?))\b)\w+|in this (?:story|game|scene)|(?<!say )(?<!not )you (?:are|re) an?"
    r"|du bist eine?|eres una?|tu es une?|vous etes une?|stell dir vor|imagina|finge)\b"
)

#: A statement that ends so is no question. Regex, at the end of the text as written.
TAG = r"[,;]\s*(?:got it|ok|okay|alright|all right|understood|yes|remember|d[’']accord|compris|vale|entendido|verstanden|klar|ok[ée]|capito)\s*\?+$"

#: First words of a task that also open an order about how to speak ("please …", "tell people …").
WEAK_TASK = """please also then go do now continue next let let's make name tell list jetzt nun mach ahora sigue dis maintenant
    continue poursuis"""

#: Emoji that are a reaction by themselves.
APPLAUSE = "👍👏🙏❤😍🎉💯✅🥰😊🤩💪🙌🔥👌"
PROTEST = "👎😡🤦😠🙄😤❌🤬😒"

#: Hints made of nothing but these say nothing a teacher could use ("be better", "that's wrong").
EMPTY_ADVICE = """better good correct correctly accurate accurately improve improved improvement best well proper properly right
    quality helpful useful great nice careful mistake mistakes error errors wrong incorrect again try retry redo more harder
    do provide ensure should answer response reply satisfy user user's users fix avoid attention mejor bien correcto intenta
    falsch richtig besser gut versuch faux correct mieux bien no nope nein non not isn't doesn't don't work works terrible bad useless
    awful false rewrite response's"""
