"""Words that mean the same in 17 languages, for the wish classifier: multilingual concepts. Data only; `scorers.wish_labels` reads it.

A concept stands in the features beside the word itself, so that what the classifier learns of "no emojis" it also knows of "keine
Emojis". Accents and case are folded away. A word that ends in ``*`` is a prefix. `SCRIPTS` holds what is found inside a run of letters,
for writing without spaces. The order of the concepts matters only where a word belongs to two: the first wins.
"""

from __future__ import annotations

WORDS: dict[str, str] = {
    "EMOJI": """emoji* emojs emjoi* emoij* emogi* emotic* emotik* emotico* smiley* smilie* smily smileis smail* смайл* эмодзи* эмоджи*
        emotki emotek emotka faccine faccina carita* carinha* buzk* bonshommes sticker* 이모* إيموجي* ايموجي* ايموجيات الايموجي الإيموجي
        इमोजी* इमोटिकॉन* smajlik* hymio* emodzi* gulicke smajli* glimfjas""",
    "PICTURE": """picture* pic pics icon icons face faces bildchen* bilder gesichter gesicht symbole symbol symbols bildjes plaatje*
        poppetje* gezichtje* dessin* visage* icone* dibuj* monito* figur* figurin* disegnin* simbol* desenh* obrazk* obrazek* ikon*
        картинк* рожиц* значк* resim* yuz* tecken bilder figurer رموز الرموز رمز وجوه الوجوه صور चेहर* चित्र* ansikte* 그림* 표정*""",
    "MARKUP": """asteris* asterix* stars sternchen* bold bolded bolding bolds fett fettdruck fettschrift fettgedruckt* fettung fetten gras
        negrita* grassett* negrit* vetgedrukt* vet vette pogrub* жирн* звездоч* звёздоч* kalin* yildiz* fetstil* fet feta stjarn*
        sterretje* gwiazdk* estrell* etoil* markdown* markdwon markup cursiv* kursiv* italic* hashtag* backtick* underscore*
        볼드* 별표* 마크다운* 굵은* 굵게 غامق* الغامق النجوم نجوم مارك* बोल्ड मार्कडाउन तारांकन мarkdown маркдаун* разметк*""",
    "FORMAT": """format* formatt* formater* formatea* formatação formattazione opmaak formatow* форматиров* bicim* formatering* 서식*
        تنسيق* التنسيق फॉर्मेट* rendered render renders""",
    "PLAIN": """plain unformatted raw reiner reinen blank schlicht* unformatiert* brut brute plano simples semplice platte kale zwykly
        zwykle zwyklym обычн* прост* sade duz ren vanlig vanligt 일반 평문 عادي सादा सादे ascii plaintext klartext""",
    "TEXT": """text texts texte texto testo tekst* teksten текст* metin* metn* 텍스트* نص النص टेक्स्ट""",
    "PROSE": """prose sentences satz* fliesstext* prosa oracion* frases phrases frasi zinnen zdani* предложени* cumle* meningar lopande
        paragraph* parraf* paragraf* absatz* absatze paragrafo* alinea* akapit* абзац* stycke* 문장* 문단* جمل فقرة वाक्य* rediges
        redigee redige zusammenhangend* continuous normally""",
    "JSON": """json* jsn jason джейсон* जेसन braces accolades llaves klammern machine parse parser parseable maschinenlesbar* lisible
        struktur* structured""",
    "LIST": """list lists liste listen listes lista listas elenco elenchi elenchos bullet bullets bulletpoint* bulleted aufzahlung*
        stichpunkt* stichwort* spiegelstrich* vineta* puces puce topico* opsomming* opsommingen lijst* lijstje* wypunktowan* wypunktuj
        punktow* punktach lista list* list* списк* список* пункт* madde* listele* punktlist* punkter punktform numbered tirets guiones
        puntos 목록* 리스트* 글머리* قائمة القائمة قوائم نقاط सूची* बुलेट* पॉइंट*""",
    "SHORTER": """shorter shrter shortr briefer terser tighter condense condensed trim trimmed shorten summarize summarise summary
        kurzer knapper kurze kurzen verkurz* gekurzt* raccourci* abrege* resum* acorta* accorci* abbrevi* stringi encurt* reduz* korter
        inkort* krocej skroc* krotsz* короче покороче сократ* kisalt* kortare korta* 줄여* 짧게* أقصر اقصر اختصر* اختصار* باختصار""",
    "SHORT": """short shrt brief briefly concise concisely succinct terse compact gist kurz knapp bundig pragnant gedrangt court courte
        courts courtes bref breve breves brevement concis* conciso* corto corta cortos cortas cortito cortita curto curta curtos curtas
        brevi breve sintetic* conciso succint* kort korte bondig beknopt krotk* zwiezl* коротк* кратк* лаконич* kisa ozet* kort kortfatt*
        short* 짧은 짧아* 간단* 간결* قصير قصيرة موجز* مختصر* بإيجاز छोटा छोटे छोटी संक्षिप्त संक्षेप* tldr conci* tl dr""",
    "LONGER": """longer lengthier elaborate expand extend flesh langer ausfuhrlicher detaillierter plus_long developpe* etoff* detaille
        explaye extiende* extender* explay* desarroll* detalla* largo_mas approfond* dilung* estes* elabor* detalh* aprofund* desenvolv*
        uitgebreider uitgebreid uitvoerig* langere dluzej dluzsz* obszern* szczegolow* rozwin* подробн* длиннее поподробн* разверн*
        uzat* detayl* ayrinti* daha_uzun utforlig* langre 자세* 길게* 상세* أطول اطول تفصيل* بالتفصيل موسع विस्तार* लंबा_और thorough
        thoroughly in_depth depth comprehensive ausfuhrlich* ausfuhr*""",
    "DETAIL": """detail details detailed detalle* detalhes dettagli* detail* einzelheiten szczegol* детал* ayrintil* detaljer detaljerad*
        details explanation* erklarung* explication* explicacion* spiegazion* explicac* uitleg* wyjasnie* объяснен* aciklama* förklar*
        forklar* 설명* تفاصيل التفاصيل شرح जानकारी विवरण context background nuance""",
    "LONG": """long lengthy wordy verbose longwinded winded interminable* lang lange langes langen langatmig* wortreich longue longs longues
        largo larga largos largas extenso extensa extensas lungo lunga lunghi lunghe prolisso prolix* longo longa longos longas
        langdradig dlugi* dlugo dluga dlugie длинн* многословн* uzun* lange langt langa mangordig* 길어* 긴 길다 길고 طويل* طويلة
        طويله लंबा लंबे लंबी लम्बा talkative rambl* novel essay epistle wall bible ladrillo pave roman romane aufsatz tocho sermon*""",
    "FILLER": """fluff filler waffle chatter preamble babble blather yap yapping padding rambling gelaber geschwafel geschwurbel laber*
        schwafel* fullworter blabla bla blah baratin blablater rollo paja enroll* enrolles palabreria relleno chiacchiere fronzoli
        sbrodol* enrola* enrolac* lero encheccao gelul praatjes geleuter wodolejstwa lania lanie вод* воды болтов* laf lafi svammel
        babbel prat gevatti 군더더기* 잔말* 서론* حشو كلام बकवास बातें flanne* delaye* tourne romanzo intro intros introduction introductions
        einleitung* introduzion* wstep* предисл*""",
    "POINT": """point punkt sodo grano but essentiel kern sedno sedna сути дело делу wesentliche* dunto sadede poang* chase 본론* 핵심*
        essentials nutshell soul grano ponto nocciolo""",
    "WORD": """word words sentence satzen wort worter worten phrase palabras palabra parole parola palavras mots mot woorden zin slow slowach
        zdaniu слов* букв* kelime* ord mening 단어* كلمات كلمة शब्द* line lines zeile* zeilen ligne* linea* linha* regel* linijk* строк*
        satir* rader""",
    "FORMAL": """formal formally formel formelle formels formell formeller formelles formales formalmente formale formali formeel formeler
        formele formaln* formalny formalniej formellt formellare forml* formlich* professional* professionel* profesional* professionell*
        profissional* profession* professioneel zakelijk* profesjonaln* профессион* официальн* формальн* вежлив* resmi* profesyonel*
        ciddi* kibar* proper businesslike business polite politely polished serious seriously dignified respectful sachlich* seri*
        serieu* seriös* hoflich* soutenu poli polie usted ustedes siezen vous vouvoie* vouvoy* lei u siebie pani pan вы вас 존댓말* 높임말*
        격식* 정중* رسمي* رسمية مهذب* औपचारिक* आप विनम्र saklig* artig* yrkes* educado cortes ni ceremon* businessl* hofflich""",
    "CASUAL": """casual casually relaxed relax chill laid informal informally informel informelle informell informeel informele locker
        lockerer leger* entspannt* decontract* detendu* cool pote relajad* relax* cercan* colega coleguil* tutear* tutea* tuteo duzen
        tutoie* tutoy* tu_dai tu du dammi dai descontra* a_vontade informal* losser luchtig* tutoyeren jij luzn* swobodn* nieformaln*
        неформальн* раскован* ты тыкать samimi* rahat* arkada* avslapp* ledig* lattsam* informell* 반말* 편하게* 편한 캐주얼* عفوي* ودي*
        غير_رسمي अनौपचारिक* दोस्ताना friendly friendlier buddy mate pal chatty chummy slang slangy freundschaftlich* salopp* kumpel*
        familier* confidencial rapaz loosen playful jokey breezy folksy flapsig* zwangl* amistos* amichevol* kolezen*""",
    "STIFF": """stiff stuffy robotic starchy lawyer legalese pompous stilted wooden butler bureaucra* steif* gestelzt* geschwollen*
        guinde* coince* rigid* estirad* acarton* ingessat* rigido* engessad* stijf* stijve* sztywn* drętw* чопорн* официоз* stel* stelt
        딱딱* जटिल corporate""",
    "STOP": """stop stopp quit drop cut skip ditch lose remove avoid omit enough kill eliminate scrap strip cease axe lay spare lass lasst
        weglass* lasse schluss hor vermeid* spar verzichte genug weg arrete* cesse* evite* supprime* enleve* vire* laisse_tomber oublie_les
        deja dejen dejad basta evita quita elimina ahorra* fuera corta smetti* smettila togli elimina* evita* leva piantala taglia pare para
        tire tira evite remova corte* chega retire stoppen stop hou vermijd* laat schrap* genoeg przestan* usun* unikaj* wywal* dosc koniec
        хватит перестан* убер* прекрат* брось завязыв* избегай birak* kes kesin kaldir* yeter sluta skippa undvik* slopa ta_bort
        그만* 빼* 없애* 지워* توقف* كفى احذف* تجنب* ازل أزل बंद हटा* छोड़ो lay_off eschew""",
    "NEG": """no not dont doesnt didnt never without w o non none isnt arent wasnt cant cannot neither nor kein keine keinen keinem keiner
        nicht nie niemals ohne nix pas ne sans jamais aucun* ni sin nunca jamas ningun* niente senza mai nessun* nao sem nunca nenhum*
        geen niet zonder nooit nie bez zadnych zadnej не без нет никаких ни degil yok hic asla olmadan olmasin inte ingen inga utan
        aldrig 없이 말고 말아* 마세요 마 안 않* 하지마* لا بدون ليس لست من_دون नहीं मत बिना ना free nope frei""",
    "NONEED": """neednt dispense unnecessary unnotig overbodig brauchst brauche brauchen musst must_not besoin obligé oblige hace_falta falta
        tienes serve bisogno devi precisa precisas necesit* necessit* hoeft hoef musisz trzeba обязательно нужно надо gerek* zorunda
        behover maste 필요* حاجة داعي ضروري जरूरत need needed needs have""",
    "LESS": """less fewer weniger moins menos meno minder mniej меньше поменьше az mindre farre 덜 أقل اقل कम""",
    "MORE": """more mehr plus mas piu mais meer wiecej bardziej больше более побольше daha fazla mer 더 좀더 أكثر اكثر المزيد ज्यादा और
        zusatzlich extra additional further davantage""",
    "TOO": """too zu trop demasiad* troppo troppi troppe demais muito muita muitos muitas te za zbyt слишком cok asiri for alldeles 너무
        جدا كثير* बहुत way so such overly excessive* ubertrieben* mucho mucha muchos muchas tanto tanta tantos tantas viel vielen soviel
        veel heel tyle duzo много such""",
    "AGAIN": """again wieder nouveau otra_vez nuevo vez nuovo novo weer opnieuw znowu znow снова опять tekrar yine igen 다시 مجددا مرة फिर
        back vuelve volver torna tornare volta voltar terug powrot* обратно geri tillbaka""",
    "ANYMORE": """anymore any_more mehr_nicht längre langre artik уже больше_не już juz ya gia ja_nao longer_no ab_jetzt""",
    "ALLOW": """can may could fine ok okay okey allowed welcome free feel alright permitted mind kannst darfst durfen konnen gerne ruhig
        erlaubt peux pouvez puedes podes podeis puoi potete pode pod podem mag mogen kan kunt gerust mozesz moge moga mozna можешь можете
        можно olabilir* bilirsin* kullanabilir* yazabilir* ebilir* far kan_du gar_bra 괜찮* 돼* 됩니다 되요 يمكنك عادي بأس سकते
        सकते ठीक सकती sorun tamam""",
    "UNDO": """forget ignore disregard undo revert nevermind scratch reverse withdraw vergiss vergessen ignorier* oublie* olvida* ignora*
        dimentica* esquec* vergeet negeer zapomnij zignoruj забудь* забудьте unut* glom 잊어* 무시* انس* تجاهل भूल भुला cancel restore""",
    "SAID": """said asked told earlier before previous gesagt sagte vorhin demande dit disais dije pedi dicho detto chiesto disse falei gezegd
        vroeg mowilem prosil* говорил* сказал* просил* dedim soyledi* sa bad 말* قلت طلبت कहा""",
    "LIKE": """like love prefer want wish need enjoy fond mochte will hatte gern wunsche aime prefere* voudrais veux prefier* quiero quisiera
        gusta* encanta* preferi* voglio vorrei piace piacciono prefiro quero gosto adoro wil liever vind graag wole chce lubie хочу люблю
        предпочит* нравится isti* severim tercih vill gillar onskar 좋아* 원해* 싶* أريد اريد أفضل أحب चाहिए चाहता पसंद rather""",
    "HATE": """hate dislike annoying annoy annoys sick tired nerven nervt stort storen hasse mag_nicht ätzend atzend deteste agace* marre saoule*
        horripile odio molesta* harto detesto odio stufo fastidi* irrita* cansado haat irritant* vervelend* denerwuj* wkurza* nienawidze
        бес* раздража* достал* надоел* nefret sinir* bikti* hatar stor trott 싫* 짜증* أكره يزعج* نफरत परेशान ugly ugh distracting
        distract childish kindisch* puéril* pueril infantil* clutter""",
    "MISS": """miss missed missing fehlen fehlt vermisse manque* extrano extrane* echo manca* mancano falta_de saudade* mis tesknie скуча*
        ozledim saknar 그리* أفتقد اشتقت याद""",
    "ANSWER": """answer answers answering reply replies replying respond responding response responses antwort* antworten reponse* repond*
        respuesta* respond* responde* contest* contesta* rispost* rispond* resposta* antwoord* odpowied* odpowiad* ответ* отвеч* cevap*
        yanit* svar* 대답* 답변* 답해* 답* رد الرد ردود أجب جواب إجابة جवाब जवाब* उत्तर* message messages output""",
    "WRITE": """write writing speak talk talking use using put add include give return explain say tell schreib* schreiben sprich reden rede
        red benutz* verwend* nutz* gib formulier* ecri* parle* utilis* mets mettre ajout* donne* escrib* habla* usa usar use utiliz* pon
        poner ponga pongas agrega* da dame haz scriv* parla* mett* metti dammi dai fornisc* escrev* fala* fale coloc* usar da_me schrijf*
        praat gebruik* zet geef pis* mow* uzyw* dodaw* wstaw* daj пиш* говор* использу* добавля* ставь дай yaz* konus* kullan* ekle* ver
        skriv* prata* anvand* tala ge lagg 써* 쓰* 사용* 말해* 해주* 해줘* 주세요 اكتب* استخدم* تكلم* تحدث أضف أعطني लिख* बोल* इस्तेमाल*
        लगा* दो दीजिए बता* stick switch keep make go be seien sei soit sé sea sii sia seja wees badz будь ol var""",
    "PLEASE": """please pls plz plase thanks thx bitte danke merci stp svp plait gracias favor porfa grazie obrigad* alstublieft aub graag_
        prosze dzieki пожалуйста спасибо lutfen tesekkur* tack snalla 부탁* 감사* 제발 فضلك رجاء شكرا कृपया धन्यवाद""",
    "QWORD": """what whats how who whom whose when where which why was_ist wie wer wann wo welche* warum wieso quel* quelle* comment combien
        qui quand pourquoi cual* quien* cuando donde cuant* como porque quanto quanti quanta chi quando dove perche quale quem onde qual
        quantos hoe wie_ wanneer waar waarom hoeveel jaki* jak kto kiedy gdzie ile dlaczego как* кто когда где сколько почему какой* какая
        nasil kim nerede kac neden ne hur vem nar var_ varfor vad 무엇* 누가 언제 어디 왜 몇 ما ماذا من_ متى أين كم لماذا क्या कौन कब
        कहाँ कितन* क्यों""",
    "CONTENT": """story stories letter email mail poem poems function file files code script program class method variable book movie film song
        recipe blog article report invitation speech cover_letter cv resume contract tweet caption python java database array string
        geschichte* brief_ gedicht* funktion* datei* rezept* aufsatz_ rede bewerbung* histoire* lettre* poeme* fonction* fichier* recette*
        cuento* historia* carta* correo* poema* funcion* archivo* receta* raccont* storia* lettera* poesia* funzion* ricett* conto*
        história* carta email funcao arquivo verhaal* brief gedicht* functie* bestand* recept* opowiadan* list_ wiersz* funkcj* plik*
        przepis* рассказ* письм* стих* функци* файл* рецепт* hikaye* mektup* siir* dosya* tarif* beratt* brev* dikt* funktion* fil
        소설* 편지* 시를 함수* 파일* قصة رسالة قصيدة ملف कहानी* पत्र* कविता* फ़ाइल* फाइल* song songs joke jokes essay_ python
        translate translation ubersetz* tradui* traduc* tradu* vertaal* przetlumacz* перевед* перевод* cevir* oversatt* 번역* ترجم* अनुवाद*
        convert""",
    "SCREEN": """terminal console screenreader reader screen log logs konsole vorlese* lecteur d'ecran ecran lector pantalla leitor ekran
        терминал* konsol* skarm* whatsapp sms braille render displays anzeige sprachausgabe""",
}

#: Names of languages, by ISO 639-1 code.
LANGUAGES: dict[str, str] = {
    "en": """english englisch* anglais* ingles inglesa inglese engels* angielsk* английск* ingilizce* engelsk* 영어* الإنجليزية بالإنجليزية
        الانجليزية بالانجليزية إنجليزي انجليزي अंग्रेज* अंग्रेज़* इंग्लिश anglictin* englanti*""",
    "es": """spanish spanisch* espagnol* espanol* castellan* spagnol* espanhol* spaans* hiszpansk* испанск* ispanyolca* spansk* 스페인어*
        الإسبانية بالإسبانية الاسبانية بالاسبانية स्पेनिश* spanelsk* espanja*""",
    "fr": """french franzosisch* francais* frances francesa francese* frans franse francusk* французск* fransizca* fransk* franska 프랑스어*
        الفرنسية بالفرنسية फ्रेंच* फ़्रेंच*""",
    "de": """german deutsch* allemand* aleman* tedesc* alemao duits* niemieck* немецк* almanca* tysk* 독일어* الألمانية بالألمانية जर्मन*""",
    "it": """italian italienisch* italien* italian* italiaans* wlosk* итальянск* italyanca* 이탈리아어* الإيطالية بالإيطالية इतालवी इटालियन""",
    "pt": """portugu* portogh* portugies* portugais* portugal* португальск* portekizce* 포르투갈어* البرتغالية بالبرتغالية पुर्तगाली""",
    "nl": """dutch niederlandisch* hollandisch* neerlandais* holandes* olandese* nederlands* niderlandzk* голландск* нидерландск*
        felemenkce* nederlandsk* hollandsk* 네덜란드어* الهولندية""",
    "pl": """polish polnisch* polonais* polaco polacca polacco polones* pools poolse polsk* польск* lehce* 폴란드어* البولندية""",
    "ru": """russian russisch* russe ruso rusa russo russa russisch* rosyjsk* русск* rusca* rysk* 러시아어* الروسية بالروسية रूसी""",
    "tr": """turkish turkisch* turc turque turco turca turks tureck* турецк* turkce* turkisk* 터키어* 튀르키예어* التركية तुर्की""",
    "sv": """swedish schwedisch* suedois* sueco svedese zweeds* szwedzk* шведск* isvecce* svensk* 스웨덴어* السويدية""",
    "ja": """japanese japanisch* japonais* japones* giapponese* japans* japonsk* японск* japonca* japansk* 일본어* اليابانية जापानी""",
    "zh": """chinese chinesisch* chinois* chino cinese chines chinees* chinsk* китайск* cince* kinesisk* 중국어* الصينية चीनी mandarin*""",
    "ko": """korean koreanisch* coreen* coreano* koreaans* koreansk* корейск* korece* 한국어* 한글* الكورية कोरियाई""",
    "ar": """arabic arabisch* arabe* arabo arabsk* арабск* arapca* arabisk* 아랍어* العربية بالعربية بالعربي عربي अरबी""",
    "hi": """hindi* хинди hintce* 힌디어* الهندية हिंदी* हिन्दी*""",
    "uk": """ukrain* ukrainisch* украинск* українськ* ukraynaca*""",
    "ca": """catalan katalan* catala""",
    "cs": """czech tschechisch* tcheque checo cesky cestin* чешск*""",
    "da": """danish danisch* danois* dansk* датск*""",
    "nb": """norwegian norwegisch* norvegien* noruego norsk* норвежск*""",
    "fi": """finnish finnisch* finnois* finlandes* suomi suomeksi финск*""",
    "el": """greek griechisch* grec grecque griego ellinika ελληνικ* греческ*""",
    "he": """hebrew hebraisch* hebreu hebreo עברית иврит*""",
    "hu": """hungarian ungarisch* hongrois* hungaro magyar* венгерск*""",
    "id": """indonesian indonesisch* indones* bahasa""",
    "ro": """romanian rumanisch* roumain* rumano romana romaneste румынск*""",
    "th": """thai thailandisch* ไทย*""",
    "vi": """vietnamese vietnamesisch* vietnamien* vietnamita tieng вьетнамск*""",
}

#: Found inside runs of Chinese and Japanese letters; longer ones win.
SCRIPTS: dict[str, str] = {
    "EMOJI": "絵文字 顔文字 スタンプ エモジ 表情符号 表情符號 表情 颜文字 顏文字 小黄脸 emoji",
    "PICTURE": "絵 マーク 图标 小图 笑脸 笑脸符号",
    "MARKUP": "太字 ボールド アスタリスク 星印 マークダウン 加粗 粗体 粗體 星号 星號 强调",
    "FORMAT": "書式 装飾 格式 排版",
    "PLAIN": "プレーン 普通の 纯 純 普通 普通的",
    "TEXT": "テキスト 文本 文字",
    "PROSE": "文章 普通に 段落 句子 正常",
    "JSON": "ジェイソン",
    "LIST": "箇条書き リスト 列表 要点 条目 分点 清单 項目",
    "SHORTER": "短く 短めに 縮めて 簡潔に 简短 簡短 简洁 簡潔 精简 缩短 短一点 短点",
    "SHORT": "短い 短め 手短 簡単に 一言 短 简单 简要 扼要",
    "LONGER": "詳しく 長めに 長く くわしく 详细 詳細に 詳細 展开 长一点 多写 多说 深入",
    "DETAIL": "説明 細かく 细节 解释",
    "LONG": "長い 長 长 長文 冗長 冗长 啰嗦 罗嗦 囉嗦 くどい 太多字",
    "FILLER": "前置き 無駄話 余計 废话 廢話 客套 套话",
    "POINT": "要点だけ 結論 重点 直接说",
    "WORD": "一文 文字数 一句 字数",
    "FORMAL": "敬語 丁寧 フォーマル 正式 敬语 礼貌 您 书面 専業 专业",
    "CASUAL": "タメ口 タメ語 カジュアル くだけ フランク 気軽 ラフ 口语 随意 轻松 随便 友達",
    "STIFF": "堅い 堅苦し 硬い かたい 死板 生硬 严肃",
    "STOP": "やめて やめ 止めて 抜き 外して 消して 減らして 停止 停 去掉 删掉 别再 省略 少用",
    "NEG": "ないで なし ません ない 無し いらない いりません 不要 不用 不 别 別 没有 無 无 勿 请勿",
    "NONEED": "必要 なくていい なくても 没必要",
    "LESS": "控えめ 少なめ 少 少一点",
    "MORE": "もっと もう少し もうちょっと 更 多 再",
    "TOO": "すぎ 過ぎ あまりに 太 好多 这么",
    "AGAIN": "また 再び 元に戻 重新 又 恢复",
    "ALLOW": "いいよ いいです 大丈夫 構いません かまわない てもいい 可以 能 没关系 行 OKです",
    "UNDO": "忘れて 取り消 忘了 忘记 当我没 撤回",
    "SAID": "言った さっき 说过 刚才 之前",
    "LIKE": "好き ほしい 欲しい 希望 喜欢 想要 想 要",
    "HATE": "嫌い うざい 邪魔 讨厌 烦 受不了",
    "MISS": "恋しい 想念 怀念",
    "ANSWER": "返事 回答 答え 返信 回复 回覆 答案",
    "WRITE": "書いて 使って 使わ 使う 話して 答えて 返して つけ 付け してください して 写 用 说 加 发 给 输出 请用",
    "PLEASE": "ください お願い 下さい ありがとう 请 請 谢谢 麻烦",
    "QWORD": "ですか ますか 誰 何 どう いつ どこ なぜ 什么 多少 谁 怎么 哪 吗 为什么 多长 多大 几",
    "CONTENT": "物語 小説 手紙 関数 ファイル コード 翻訳 訳 メール 故事 小说 信 函数 文件 代码 翻译 邮件 诗",
}
LANGUAGE_SCRIPTS: dict[str, str] = {
    "en": "英語 英语 英文",
    "es": "スペイン語 西班牙语 西班牙文 西语",
    "fr": "フランス語 法语 法文",
    "de": "ドイツ語 德语 德文",
    "it": "イタリア語 意大利语",
    "pt": "ポルトガル語 葡萄牙语",
    "ja": "日本語 日语 日文",
    "zh": "中国語 中文 汉语 漢語 普通话",
    "ko": "韓国語 韩语 韩文",
    "ru": "ロシア語 俄语",
}
