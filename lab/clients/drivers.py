"""Drive the Python clients of `record.py`: `python drivers.py NAME PORT` in an empty folder, with the client's packages.

Set `OPENAI_API_KEY=x`, `HERMES_HOME=$PWD/hermes`, `OPENHANDS_SUPPRESS_BANNER=1` and `LITELLM_LOCAL_MODEL_COST_MAP=True`.
"""

import faulthandler
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = f"http://127.0.0.1:{sys.argv[2] if len(sys.argv) > 2 else 18123}"
DIALOGUES = json.loads(Path(__file__).with_name("dialogues.json").read_text("utf-8"))
MODEL = "qwen3-8b"


def post(path: str, value: Any) -> Any:
    request = urllib.request.Request(
        ROOT + path, json.dumps(value).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def say(session: str, dialogue: str = "", **order: Any) -> str:
    """Announce the person's next words of a session, and return them."""
    return str(post("/say", {"session": session, "dialogue": dialogue, **order})["text"])


def base(session: str) -> str:
    return f"{ROOT}/s/{session}/v1"


def atomic_schemas() -> tuple[Any, Any]:
    from atomic_agents import BaseIOSchema
    from pydantic import Field

    class QueryOutput(BaseIOSchema):
        """A search query for the question."""

        query: str = Field(..., description="The query.")

    class SuggestionOutput(BaseIOSchema):
        """What the user may ask next."""

        suggestions: list[str] = Field(..., description="Suggested questions.")

    return QueryOutput, SuggestionOutput


def atomic() -> None:
    """atomic-agents: replies by a forced tool call, a clock in the system prompt, a query agent before the chat, a window of six messages."""
    import instructor
    import openai
    from atomic_agents import (
        AgentConfig,
        AtomicAgent,
        BasicChatInputSchema,
        BasicChatOutputSchema,
    )
    from atomic_agents.context import BaseDynamicContextProvider, ChatHistory, SystemPromptGenerator

    QueryOutput, SuggestionOutput = atomic_schemas()

    class Clock(BaseDynamicContextProvider):
        seconds = 0

        def get_info(self) -> str:
            Clock.seconds += 37
            return f"2026-11-30 10:{Clock.seconds // 60 % 60:02}:{Clock.seconds % 60:02}"

    def agent(session: str, background: str, output: Any, history: Any, clock: bool = False) -> Any:
        client = instructor.from_openai(openai.OpenAI(base_url=base(session), api_key="x"))
        generator = SystemPromptGenerator(
            background=[background], context_providers={"clock": Clock(title="Time")} if clock else {}
        )
        config = AgentConfig(client=client, model=MODEL, history=history, system_prompt_generator=generator)
        return AtomicAgent[BasicChatInputSchema, output](config)

    def chat(session: str, background: str, clock: bool = False, window: int | None = None) -> Any:
        return agent(session, background, BasicChatOutputSchema, ChatHistory(max_messages=window), clock)

    chats = {
        "starter": (chat("starter", "You know bread.", clock=True), "sourdough"),
        "mould": (chat("mould", "You are a friendly assistant."), "landlord"),
        "knee": (chat("knee", "You are a friendly assistant."), "running"),
        "lists": (chat("lists", "You review Python.", window=4), "python"),
        "bretagne": (chat("bretagne", "You plan trips.", clock=True, window=6), "voyage"),
        "sheet": (chat("sheet", "You are a friendly assistant."), "excel"),
    }
    for at in range(4):
        for session, (chatting, dialogue) in chats.items():
            text, reply = DIALOGUES[dialogue][at]
            if session in ("starter", "bretagne"):
                search = agent(session, "You write search queries.", QueryOutput, ChatHistory())
                search.run(BasicChatInputSchema(chat_message=text))
            say(session, dialogue, reply={"calls": [["BasicChatOutputSchema", {"chat_message": reply}]]})
            chatting.run(BasicChatInputSchema(chat_message=text))
            if session == "mould":
                suggest = agent(session, "You suggest questions.", SuggestionOutput, chatting.history.copy())
                suggest.run(BasicChatInputSchema(chat_message="What may I ask next?"))


def qwenagent() -> None:
    """qwen-agent: tools and a document written out in the system prompt, a router, a memory in the prompt, an edited message."""
    from qwen_agent.agents import Assistant, Router
    from qwen_agent.agents.memo_assistant import MemoAssistant
    from qwen_agent.tools.base import BaseTool, register_tool

    @register_tool("shop_price")
    class Price(BaseTool):
        description = "Price of an article in the shop."
        parameters = [{"name": "article", "type": "string", "description": "article", "required": True}]  # noqa: RUF012

        def call(self, params: Any, **_: Any) -> str:
            return f"{self._verify_json_format_args(params)['article']}: 12.90 EUR"

    notes = Path("notes.txt")
    notes.write_text("\n\n".join(f"{q}\n{a}" for pairs in DIALOGUES.values() for q, a in pairs) * 3)

    def llm(session: str) -> dict[str, Any]:
        return {
            "model": MODEL,
            "model_server": base(session),
            "api_key": "x",
            "generate_cfg": {"max_input_tokens": 6000},
        }

    def words(tool: str, **arguments: Any) -> str:
        return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"

    def router(session: str) -> Any:
        helpers = [
            Assistant(llm=llm(session), name="coder", description="code", system_message="You write code."),
            Assistant(
                llm=llm(session), name="writer", description="texts", system_message="You write texts."
            ),
        ]
        return Router(llm=llm(session), agents=helpers)

    tools = Assistant(llm=llm("train"), function_list=["shop_price"], system_message="You plan trips.")
    memo = MemoAssistant(llm=llm("tax"), system_message="Du bist ein Steuerberater.")
    bots: dict[str, tuple[Any, str, dict[int, list[str]]]] = {
        "starter": (Assistant(llm=llm("starter"), files=[str(notes.resolve())]), "sourdough", {}),
        "train": (
            tools,
            "voyage",
            {1: [words("shop_price", article="billet")], 2: [words("shop_price", article="vélo")]},
        ),
        "tax": (
            memo,
            "steuer",
            {i: [words("storage", operate="put", key=f"fact{i}", value=str(i * 480))] for i in (0, 1)},
        ),
        "mould": (Assistant(llm=llm("mould")), "landlord", {}),
        "knee": (Assistant(llm=llm("knee")), "running", {}),
        "mixed": (router("mixed"), "python", {}),
    }
    histories: dict[str, list[Any]] = {name: [] for name in bots}
    for at in range(4):
        for session, (bot, dialogue, before) in bots.items():
            histories[session].append(
                {"role": "user", "content": say(session, dialogue, before=before.get(at, []))}
            )
            *_, reply = bot.run(messages=histories[session], lang="en")
            histories[session].extend(reply)
    history = histories["mould"][:-4]  # the person edits the third of four messages and goes on
    for words_now, reply_now in (
        ("Just one angry line please", "The mould is still here, and so are my two mails."),
        ("lol thanks", "Good luck!"),
    ):
        history.append({"role": "user", "content": say("mould", text=words_now, reply=reply_now)})
        *_, reply = bots["mould"][0].run(messages=history, lang="en")
        history.extend(reply)


def kani() -> None:
    """kani: titles and summaries that extend the real history under its system prompt, tools, a sliding window, a regenerated answer."""
    import asyncio
    from typing import Annotated

    from kani import AIParam, ChatRole, Kani, ai_function
    from kani.engines.openai import OpenAIEngine

    class Words:
        def encode(self, text: str, **_: Any) -> list[str]:
            return text.split()

    class Shop(Kani):
        @ai_function()
        def find_train(self, to: Annotated[str, AIParam(desc="Where to")]) -> str:
            """Find a train."""
            return f"Paris-{to}: 08:04, 3 h 12, 39 EUR"

    def engine(session: str, size: int) -> Any:
        return OpenAIEngine(
            "x",
            model=MODEL,
            max_context_size=size,
            api_base=base(session),
            api_type="chat_completions",
            tokenizer=Words(),
        )

    def room(session: str, prompt: str, size: int = 8000, kind: Any = Kani) -> Any:
        return kind(engine(session, size), system_prompt=prompt, desired_response_tokens=10)

    async def ask(chat: Any, words: str) -> None:
        async for _ in chat.full_round(words):
            pass

    async def aside(chat: Any, words: str) -> None:
        await Kani(
            chat.engine, system_prompt=chat.system_prompt, chat_history=list(chat.chat_history)
        ).chat_round_str(words)

    async def go() -> None:
        chats = {
            "starter": (room("starter", "You know bread."), "sourdough"),
            "mould": (room("mould", "You are a helpful assistant."), "landlord"),
            "knee": (room("knee", "You are a helpful assistant."), "running"),
            "lists": (room("lists", "You review Python.", size=220), "python"),
            "train": (room("train", "You plan trips.", kind=Shop), "voyage"),
            "notes": (room("notes", "You are a helpful assistant."), "report"),
        }
        for at in range(4):
            for session, (chat, dialogue) in chats.items():
                calls = [[["find_train", {"to": "Roscoff"}]]] if session == "train" and at in (1, 2) else []
                await ask(chat, say(session, dialogue, calls=calls))
                if at == 0 and session in ("starter", "mould", "knee"):
                    await aside(chat, "Name this chat in at most five words.")
                if at == 2 and session in ("starter", "lists"):
                    await aside(chat, "Summarize our chat for my notes.")
        for session in ("mould", "notes"):  # regenerate the last answer, then go on
            chat, dialogue = chats[session]
            while chat.chat_history.pop().role != ChatRole.USER:
                pass
            await ask(chat, say(session, dialogue, again=True))
            await ask(chat, say(session, text="ok, and in two sentences?", reply="Done in two sentences."))
        await asyncio.gather(
            *(
                ask(chats[s][0], say(s, text=t, reply=r))
                for s, t, r in (
                    ("starter", "rye or wheat?", "Rye wakes it up faster."),
                    ("knee", "and on asphalt?", "Only the easy runs."),
                )
            )
        )

    asyncio.run(go())


def swarm() -> None:
    """openai-swarm: agents hand over by a tool, so that the system prompt and the tools change within a turn; a closing report."""
    import openai
    from swarm import Agent, Swarm

    report = "You write the report of a support case"

    def to_household() -> Any:
        """Hand over to the agent for everyday life."""
        return household

    def to_tech() -> Any:
        """Hand over to the agent for computers."""
        return tech

    def order_status(number: str) -> str:
        """Status of an order."""
        return f"Order {number}: shipped"

    triage = Agent(
        name="Triage", model=MODEL, instructions="Decide who helps.", functions=[to_household, to_tech]
    )
    household = Agent(
        name="Household",
        model=MODEL,
        instructions=lambda context_variables: f"You help {context_variables['name']} with everyday life.",
        functions=[order_status],
    )
    tech = Agent(
        name="Tech", model=MODEL, instructions="You help with computers. Be brief.", functions=[to_household]
    )
    writer = Agent(name="Report", model=MODEL, instructions=report + ".")

    state: dict[str, Any] = {}
    plan = {
        "starter": ("sourdough", "to_household", "Ana"),
        "mould": ("landlord", "to_household", "Ana"),
        "knee": ("running", "to_household", "Ben"),
        "lists": ("python", "to_tech", "Ben"),
        "wlan": ("wifi", "to_tech", "Ana"),
        "sheet": ("excel", "to_tech", "Ben"),
    }
    for at in range(4):
        for session, (dialogue, hand_over, name) in plan.items():
            client = Swarm(openai.OpenAI(base_url=base(session), api_key="x"))
            agent, messages = state.get(session, (triage, []))
            calls = (
                [[[hand_over, {}]]]
                if at == 0
                else [[["order_status", {"number": "4711"}]]]
                if at == 2 and name == "Ana" and hand_over == "to_household"
                else []
            )
            messages = [*messages, {"role": "user", "content": say(session, dialogue, calls=calls)}]
            done = client.run(agent, messages, context_variables={"name": name}, stream=False)
            state[session] = (done.agent, messages + done.messages)
            if at == 3 and session in ("starter", "mould"):
                text = "\n".join(
                    f"{m['role']}: {m['content']}" for m in state[session][1] if m.get("content")
                )
                client.run(writer, [{"role": "user", "content": text}])


def promptic() -> None:
    """promptic: a prompt template around the person's words, memory, streaming; a title and suggestions by typed functions."""
    from promptic import State, llm
    from pydantic import BaseModel

    class Suggestions(BaseModel):
        questions: list[str]

    def chat(session: str, template: str, **options: Any) -> Any:
        def turn(question: str, person: str) -> str: ...

        turn.__doc__ = template
        return llm(
            model=f"openai/{MODEL}",
            api_base=base(session),
            api_key="x",
            memory=True,
            state=State(),
            **options,
        )(turn)

    def title(session: str, words: str) -> None:
        @llm(model=f"openai/{MODEL}", api_base=base(session), api_key="x")
        def name(words: str) -> str:
            """Give this chat a title of at most four words: {words}"""

        name(words)

    def suggest(session: str, question: str, answer: str) -> None:
        @llm(model=f"openai/{MODEL}", api_base=base(session), api_key="x")
        def questions(question: str, answer: str) -> Suggestions:
            """Propose two questions that may follow.

            Q: {question}
            A: {answer}
            """

        questions(question, answer)

    plain, wrapped = (
        "{question}",
        "The person is called {person}. Answer in the language of the question, in at most five sentences.\n\nQuestion: {question}",
    )
    chats = {
        "starter": (chat("starter", wrapped, system="You know bread."), "sourdough", "Ana"),
        "mould": (chat("mould", plain), "landlord", "Ana"),
        "knee": (chat("knee", plain), "running", "Ben"),
        "lists": (chat("lists", wrapped, stream=True), "python", "Ben"),
        "steuer": (chat("steuer", wrapped), "steuer", "Ana"),
        "toast": (chat("toast", plain, stream=True), "poem", "Ben"),
    }
    for at in range(4):
        for session, (turn, dialogue, person) in chats.items():
            if at == 3 and dialogue == "poem":
                continue
            words = say(session, dialogue)
            answer = turn(words, person)
            answer = answer if isinstance(answer, str) else "".join(answer)
            if at == 0 and session in ("starter", "mould", "lists"):
                title(session, words)
            if session in ("steuer", "starter"):
                suggest(session, words, answer)


def vanna() -> None:
    """vanna: one agent for two people, questions to a database by tools, a search in its memory before, three chats at once."""
    import asyncio
    import contextvars
    import sqlite3

    import httpx
    from vanna import Agent, AgentConfig, User
    from vanna.core.registry import ToolRegistry
    from vanna.core.user import RequestContext, UserResolver
    from vanna.integrations.local import LocalFileSystem
    from vanna.integrations.local.agent_memory import DemoAgentMemory
    from vanna.integrations.openai import OpenAILlmService
    from vanna.integrations.sqlite import SqliteRunner
    from vanna.tools import RunSqlTool
    from vanna.tools.agent_memory import SaveQuestionToolArgsTool, SearchSavedCorrectToolUsesTool

    here = contextvars.ContextVar("here", default="?")
    Path("shop.db").unlink(missing_ok=True)
    with sqlite3.connect("shop.db") as db:
        db.execute("create table orders (id integer, city text, total real)")
        db.executemany(
            "insert into orders values (?, ?, ?)",
            [(i, ("Graz", "Lyon", "Oslo")[i % 3], i * 7.5) for i in range(1, 13)],
        )

    class Cookie(UserResolver):
        async def resolve_user(self, request_context: RequestContext) -> User:
            name = request_context.cookies["name"]
            return User(id=name, username=name, email=f"{name}@example.com", group_memberships=["user"])

    def mark(request: httpx.Request) -> None:
        request.headers["x-lab-session"] = here.get()

    registry = ToolRegistry()
    for tool in (
        RunSqlTool(sql_runner=SqliteRunner("shop.db"), file_system=LocalFileSystem("files")),
        SaveQuestionToolArgsTool(),
        SearchSavedCorrectToolUsesTool(),
    ):
        registry.register_local_tool(tool, access_groups=[])
    service = OpenAILlmService(
        model=MODEL,
        api_key="x",
        base_url=f"{ROOT}/v1",
        http_client=httpx.Client(event_hooks={"request": [mark]}),
    )
    agent = Agent(
        llm_service=service,
        tool_registry=registry,
        user_resolver=Cookie(),
        agent_memory=DemoAgentMemory(),
        config=AgentConfig(stream_responses=True),
    )

    async def person(name: str, chats: list[str]) -> None:
        for at in range(4):
            for session in chats:
                if at < len(DIALOGUES[f"orders-{session}"]):
                    here.set(session)
                    words = say(session, f"orders-{session}")
                    async for _ in agent.send_message(
                        RequestContext(cookies={"name": name}), words, conversation_id=session
                    ):
                        pass

    async def go() -> None:
        await asyncio.gather(person("ana", ["ana-totals", "ana-hi"]), person("ben", ["ben-hi", "ben-totals"]))

    asyncio.run(go())


def diary(verb: str) -> str:
    """Return a long paste."""
    return "\n".join(
        f"Day {day}: {verb} at {day % 12} o'clock, 50 g, rose to {day * 7 % 90} percent, smell of yoghurt, kitchen at {15 + day % 5} degrees."
        for day in range(1, 20)
    )


def deepagents() -> None:
    """deepagents: planning, files, a sub-agent with its own session, compaction of a long chat, memory files in the system prompt."""
    from deepagents import create_deep_agent
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver

    def agent(session: str, prompt: str, size: int = 100_000) -> Any:
        model = ChatOpenAI(
            model=MODEL,
            base_url=base(session),
            api_key="x",
            profile={"max_input_tokens": size, "tool_calling": True},
        )
        helper = {
            "name": "researcher",
            "description": "Researches one question.",
            "system_prompt": "You research one question and answer briefly.",
        }
        return create_deep_agent(
            model=model, system_prompt=prompt, subagents=[helper], checkpointer=InMemorySaver()
        )

    task = [["task", {"description": "What smells mean what?", "subagent_type": "researcher"}]]
    plan = [
        [
            "write_todos",
            {
                "todos": [
                    {"content": "read", "status": "in_progress"},
                    {"content": "fix", "status": "pending"},
                ]
            },
        ]
    ]
    write = [["write_file", {"file_path": "/letter.md", "content": "Dear Sir"}]]
    chats: dict[str, tuple[Any, str, dict[int, list[Any]]]] = {
        "starter": (agent("starter", "You know bread.", size=4200), "sourdough", {1: [task]}),
        "mould": (
            agent("mould", "You help with letters."),
            "landlord",
            {1: [write], 2: [[["read_file", {"file_path": "/letter.md"}]]]},
        ),
        "knee": (agent("knee", "You help with letters."), "running", {}),
        "lists": (agent("lists", "You fix code."), "python", {0: [plan], 2: [plan, [["ls", {"path": "/"}]]]}),
        "train": (
            agent("train", "You plan trips."),
            "voyage",
            {0: [[["task", {"description": "Quiet places", "subagent_type": "researcher"}]]]},
        ),
    }
    for at in range(4):
        for session, (chat, dialogue, calls) in chats.items():
            words = say(session, dialogue, calls=calls.get(at, []))
            chat.invoke(
                {"messages": [{"role": "user", "content": words}]}, {"configurable": {"thread_id": session}}
            )
    turns = [
        {"text": f"My diary:\n{diary('fed')}\nWhat do you see?", "reply": "It rises best on the warm days."},
        {"text": f"And of the rye one:\n{diary('stirred')}", "reply": "The same, but slower."},
    ]
    for order in (*turns, *({"dialogue": name} for name in ("sourdough", "poem", "poem", "poem"))):
        chats["starter"][0].invoke(
            {"messages": [{"role": "user", "content": say("starter", **order)}]},
            {"configurable": {"thread_id": "starter"}},
        )


def hermes() -> None:
    """hermes-agent: titles beside the chat, memory reviews that extend the real history in the background, files, a manual compaction."""
    home = Path("hermes").resolve()
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(
        "memory: {nudge_interval: 2}\nskills: {creation_nudge_interval: 4}\nmodel: {context_length: 100000}\ncompression: {protect_last_n: 2}\n"
    )
    import time

    from agent.title_generator import generate_title
    from run_agent import AIAgent

    agents: dict[str, Any] = {}
    histories: dict[str, list[Any]] = {}

    def turn(session: str, dialogue: str = "", **order: Any) -> None:
        agent = agents.get(session)
        if agent is None:
            agent = agents[session] = AIAgent(
                base_url=base(session),
                api_key="x",
                provider="custom",
                model=MODEL,
                session_id=f"20261130_{session}",
                quiet_mode=True,
                platform="cli",
                enabled_toolsets=["file", "todo", "memory", "skills"],
                skip_context_files=True,
            )
        words = say(session, dialogue, **order)
        done = agent.run_conversation(words, conversation_history=histories.get(session))
        first = session not in histories
        histories[session] = done["messages"]
        if first and dialogue != "poem":
            generate_title(
                words,
                done["final_response"],
                main_runtime={
                    "provider": "custom",
                    "model": MODEL,
                    "base_url": base(session),
                    "api_key": "x",
                    "api_mode": "chat_completions",
                },
            )
        time.sleep(2)

    todo = [["todo", {"todos": [{"id": "1", "content": "letter", "status": "in_progress"}]}]]
    for at in range(4):
        turn("starter", "sourdough")
        turn("mould", "landlord", calls=[todo] if at == 1 else [])
        turn("knee", "running")
        if at < 3:
            turn(
                "lists",
                "python",
                calls=[
                    [["write_file", {"path": str(home / "item.py"), "content": "tags = []"}]],
                    [["read_file", {"path": str(home / "item.py")}]],
                ]
                if at == 0
                else [],
            )
            turn("toast", "poem")
    agent = agents["starter"]
    histories["starter"], _ = agent._compress_context(histories["starter"], None, force=True)
    turn("starter", "sourdough")
    turn("starter", text="and rye?", reply="Rye: 420 g of water for 500 g of flour.")


def nemo() -> None:
    """nemoguardrails: a check of the question before and of the answer after each turn, one of them refused."""
    Path("rails").mkdir(exist_ok=True)
    Path("rails/config.yml").write_text("""
models: [{type: main, engine: openai, model: qwen3-8b}]
instructions: [{type: general, content: "You are a friendly bot that talks with a person."}]
rails: {input: {flows: [self check input]}, output: {flows: [self check output]}}
prompts:
  - task: self_check_input
    content: |
      Your task is to check if the user message below complies with the policy.
      Policy: no insults, no secrets.
      User message: "{{ user_input }}"
      Question: Should the user message be blocked (Yes or No)?
      Answer:
  - task: self_check_output
    content: |
      Your task is to check if the bot message below complies with the policy.
      Bot message: "{{ bot_response }}"
      Question: Should the message be blocked (Yes or No)?
      Answer:
""")
    from nemoguardrails import LLMRails, RailsConfig

    rails: dict[str, Any] = {}
    histories: dict[str, list[Any]] = {}
    plan = {
        "starter": "sourdough",
        "mould": "landlord",
        "knee": "running",
        "steuer": "steuer",
        "wlan": "wifi",
    }
    for _ in range(4):
        for session, dialogue in plan.items():
            if session not in rails:
                config = RailsConfig.from_path("rails")
                config.models[0].parameters = {"base_url": base(session), "api_key": "x"}
                rails[session] = LLMRails(config)
            history = histories.setdefault(session, [])
            history.append({"role": "user", "content": say(session, dialogue)})
            history.append(rails[session].generate(messages=history))


def pydeep() -> None:
    """pydantic-deep: an agent with plans, files, sub-agents and compaction; three chats at once."""
    import asyncio

    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_deep import create_deep_agent, create_default_deps

    async def go() -> None:
        chats = {"starter": "sourdough", "mould": "landlord", "knee": "running", "lists": "python"}
        histories: dict[str, Any] = {}
        agents = {
            session: create_deep_agent(
                OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base(session), api_key="x"))
            )
            for session in chats
        }
        deps = {session: create_default_deps() for session in chats}

        async def person(session: str) -> None:
            for at in range(4):
                calls = (
                    [
                        [
                            [
                                "write_todos",
                                {
                                    "todos": [
                                        {"content": "read", "status": "in_progress", "active_form": "reading"}
                                    ]
                                },
                            ]
                        ]
                    ]
                    if session == "lists" and at == 1
                    else []
                )
                words = say(session, chats[session], calls=calls)
                done = await agents[session].run(
                    words, deps=deps[session], message_history=histories.get(session)
                )
                histories[session] = done.all_messages()

        await asyncio.gather(*(person(session) for session in chats))

    asyncio.run(go())


def openhands() -> None:
    """openhands-sdk: a thinking tool, titles, a condenser that replaces old events by a summary, streaming off."""
    from openhands.sdk import LLM, Agent, Conversation
    from openhands.sdk.context.condenser import LLMSummarizingCondenser
    from pydantic import SecretStr

    think = [["think", {"thought": "The default is shared."}]]
    plan = {
        "lists": ("python", {0: [think], 2: [think, think]}),
        "starter": ("sourdough", {}),
        "mould": ("landlord", {}),
        "knee": ("running", {}),
    }
    chats: dict[str, Any] = {}
    for at in range(4):
        for session, (dialogue, calls) in plan.items():
            if session not in chats:
                llm = LLM(
                    model=f"openai/{MODEL}", base_url=base(session), api_key=SecretStr("x"), usage_id=session
                )
                condenser = LLMSummarizingCondenser(
                    llm=llm, max_size=10 if session == "starter" else 200, keep_first=1
                )
                Path(session).mkdir(exist_ok=True)
                chats[session] = Conversation(
                    Agent(llm=llm, tools=[], condenser=condenser), workspace=session, visualizer=None
                )
            chats[session].send_message(say(session, dialogue, calls=calls.get(at, [])))
            chats[session].run()
            if at == 0 and session != "knee":
                chats[session].generate_title()
    for dialogue in ("sourdough", "poem", "poem", "poem"):
        chats["starter"].send_message(say("starter", dialogue))
        chats["starter"].run()


DRIVERS = {
    "atomic": atomic,
    "qwenagent": qwenagent,
    "kani": kani,
    "swarm": swarm,
    "promptic": promptic,
    "vanna": vanna,
    "deepagents": deepagents,
    "hermes": hermes,
    "nemo": nemo,
    "pydeep": pydeep,
    "openhands": openhands,
}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(120, repeat=True)
    DRIVERS[sys.argv[1]]()
    print(json.dumps(post("/done", {})), flush=True)
    os._exit(0)  # some packages leave threads that never end
