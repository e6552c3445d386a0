// Drive the Node clients of `record.py`: `node drivers.mjs NAME PORT`, from a copy of this file in the folder that has the client's packages.

const [name, port] = process.argv.slice(2);
const root = `http://127.0.0.1:${port}`;

const post = async (path, value) =>
  (await fetch(root + path, { method: "POST", body: JSON.stringify(value), headers: { "content-type": "application/json" } })).json();
const say = async (session, dialogue, order = {}) => (await post("/say", { session, dialogue, ...order })).text;
const base = (session) => `${root}/s/${session}/v1`;

// --------------------------------------------------------------------- @inngest/agent-kit: a router before and after each agent
async function inngest() {
  const { createAgent, createNetwork, createState, createTool, openai } = await import("@inngest/agent-kit");
  const { z } = await import("zod");
  const pick = (agent) => ({ calls: [["select_agent", { name: agent, reason: "best fit" }]] });
  const done = { calls: [["done", { summary: "answered" }]] };
  const router = [{ reason: "router", in: "first", marker: "You are the orchestrator between a group of agents", answers: [] }];
  const chat = (session) => {
    const model = openai({ model: "qwen3-8b", apiKey: "x", baseUrl: base(session) });
    const look = createTool({
      name: "look_up",
      description: "Look up a fact in the knowledge base.",
      parameters: z.object({ query: z.string() }),
      handler: async ({ query }) => `Nothing newer than 2025 about ${query}.`,
    });
    const home = createAgent({ name: "household", description: "Cooking, rent, sport, taxes", system: "You help with everyday life.", tools: [look] });
    const tech = createAgent({ name: "tech", description: "Code, spreadsheets, networks", system: "You are a senior developer. Be brief." });
    const network = createNetwork({ name: "helpdesk", agents: [home, tech], defaultModel: model, maxIter: 4 });
    const state = createState({}, { threadId: session });
    return async (dialogue, agent, order) => {
      router[0] = { ...router[0], asked: 0, answers: order?.calls ? [pick(agent), pick(agent), done] : [pick(agent), done] };
      await post("/rules", router);
      await network.run(await say(session, dialogue, order), { state });
    };
  };
  const [a, b, c, d, e] = ["starter", "landlord", "knee", "list", "wlan"].map(chat);
  const calls = [[["look_up", { query: "rye starter" }]]];
  for (let i = 0; i < 4; i++) {
    await a("sourdough", "household", i === 2 ? { calls } : {});
    await b("landlord", "household");
    await c("running", "household");
    await d("python", "tech");
    await e("wifi", "tech");
  }
  await a("sourdough", "household");
  await d("excel", "tech");
}

// --------------------------------------------------------------------- @ax-llm/ax: typed fields, memory by session, tools, a title
async function axllm() {
  const { ai, ax, AxMemory } = await import("@ax-llm/ax");
  const memory = new AxMemory();
  const title = ax('"Name the chat" firstMessage:string -> chatTitle:string');
  const further = ax('"Suggest what the user may ask next" latestAnswer:string -> followUps:string[]');
  const stock = {
    name: "getPrice",
    description: "Price of a product in euros",
    parameters: { type: "object", properties: { product: { type: "string", description: "product" } }, required: ["product"] },
    func: ({ product }) => `${product}: 12.90`,
  };
  const { dialogues } = await post("/dialogues", {});
  const turn = async (session, dialogue, order = {}, extra = {}) => {
    const llm = ai({ name: "openai", apiKey: "x", apiURL: base(session), config: { model: "qwen3-8b", stream: extra.stream ?? false } });
    const chat = ax('"You answer the questions of one customer." userMessage:string -> reply:string', { functions: extra.tools ? [stock] : [] });
    const reply = "Reply: " + (order.reply ?? dialogues[dialogue][extra.at][1]);
    const userMessage = await say(session, dialogue, { ...order, reply });
    const found = await chat.forward(llm, { userMessage }, { mem: memory, sessionId: session, stream: extra.stream ?? false });
    if (extra.title) await title.forward(llm, { firstMessage: userMessage });
    if (extra.further) await further.forward(llm, { latestAnswer: found.reply });
  };
  for (let i = 0; i < 4; i++) {
    await turn("starter", "sourdough", {}, { at: i, title: i === 0, further: true });
    await turn("mould", "landlord", {}, { at: i, title: i === 0, further: i > 1 });
    await turn("knee", "running", {}, { at: i, stream: true });
    await turn("lists", "python", {}, { at: i, title: i === 0 });
    if (i < 3) await turn("toast", "poem", {}, { at: i, stream: true });
  }
  await turn("voyage", "voyage", {}, { at: 0, title: true });
  await turn("voyage", "voyage", { calls: [[["getPrice", { product: "train" }]]] }, { at: 1, tools: true });
  await turn("voyage", "voyage", {}, { at: 2, tools: true });
  await turn("voyage", "voyage", {}, { at: 3, tools: true });
}

// --------------------------------------------------------------------- multi-llm-ts: a chat front end with titles, a plug-in, edits, answers anew
async function multillm() {
  const { igniteModel, Message, Plugin } = await import("multi-llm-ts");
  class Trains extends Plugin {
    getName() { return "find_train"; }
    getDescription() { return "Find a train"; }
    getParameters() { return [{ name: "to", type: "string", description: "where to", required: true }]; }
    isEnabled() { return true; }
    getPreparationDescription() { return "preparing"; }
    getRunningDescription() { return "searching"; }
    getCompletedDescription() { return "found"; }
    async execute(_, { to }) { return { result: `Paris-${to} 08:04, 39 EUR` }; }
  }
  const model = (session) => {
    const llm = igniteModel("openai", { id: "qwen3-8b", name: "qwen3-8b", capabilities: { tools: true, vision: false, reasoning: false, caching: false } }, { apiKey: "x", baseURL: base(session) });
    return llm;
  };
  const chats = {};
  const ask = async (session, dialogue, order = {}) => {
    const chat = (chats[session] ??= { llm: model(session), thread: [new Message("system", "You are a helpful assistant. Today is Monday.")] });
    if (session === "train" && !chat.plugged) chat.plugged = chat.llm.addPlugin?.(new Trains()) ?? true;
    const words = await say(session, dialogue, order);
    chat.thread.push(new Message("user", words));
    let text = "";
    for await (const chunk of chat.llm.generate(chat.thread, { usage: true })) if (chunk.type === "content") text += chunk.text;
    chat.thread.push(new Message("assistant", text));
  };
  const title = async (session) => {
    const { llm, thread } = chats[session];
    await llm.complete([
      new Message("system", "Provide a title for the conversation below, at most four words."),
      new Message("user", thread[1].content), new Message("assistant", thread[2].content), new Message("user", "What is the title?"),
    ], { tools: false });
  };
  const plan = [["starter", "sourdough"], ["mould", "landlord"], ["knee", "running"], ["lists", "python"], ["train", "voyage"]];
  for (let i = 0; i < 4; i++) {
    for (const [session, dialogue] of plan) {
      const calls = session === "train" && (i === 1 || i === 2) ? [[["find_train", { to: "Roscoff" }]]] : [];
      await ask(session, dialogue, { calls });
      if (i === 0) await title(session);
    }
  }
  for (const [session, dialogue] of [["mould", "landlord"], ["lists", "python"]]) { // the last answer anew, then on
    chats[session].thread.splice(-2);
    await ask(session, dialogue, { again: true });
    await ask(session, "", { text: "good. one more variant?", reply: "Here is one more variant." });
  }
  chats.knee.thread.splice(3); // the second message is edited
  await ask("knee", "", { text: "half marathon plan, I run 5k in 31 min", reply: "Sixteen weeks, three runs a week, the long run from 8 to 18 km." });
  await ask("knee", "", { text: "ok start in january", reply: "Then the race can be on 26 April." });
  for (const session of ["starter", "mould"]) {
    const { llm, thread } = chats[session];
    await llm.complete([...thread, new Message("user", "Condense our conversation into notes.")]);
  }
  await Promise.all([ask("starter", "sourdough"), ask("train", "", { text: "et le retour ?", reply: "Dimanche à 17 h 40." })]);
}

const drivers = { inngest, ax: axllm, multillm };
await drivers[name]();
const left = await post("/done", {});
console.log(JSON.stringify(left));
process.exit(0);
