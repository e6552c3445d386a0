// What the Node SDK makes of a server: one JSON line for each call. Usage: node sdk.mjs BASE_URL KEY
import OpenAI, { toFile } from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Where is Oslo?" }];
const chat = (more) => client.chat.completions.create({ model: "gpt-x", messages, ...more });

async function all(stream) {
  const found = [];
  for await (const chunk of await stream) found.push(chunk);
  return found;
}

const calls = {
  whole: () => chat({}),
  choices: () => chat({ n: 3 }),
  logprobs: () => chat({ logprobs: true, top_logprobs: 2 }),
  tools: () => chat({ tools: [{ type: "function", function: { name: "weather", parameters: {} } }] }),
  parts: () => chat({ messages: [{ role: "user", content: [{ type: "text", text: "and this?" }] }] }),
  stream: () => all(chat({ stream: true })),
  streamUsage: () => all(chat({ stream: true, stream_options: { include_usage: true } })),
  streamChoices: () => all(chat({ stream: true, n: 2 })),
  streamHelper: async () => {
    const run = client.chat.completions.stream({ model: "gpt-x", messages });
    return [await run.finalContent(), await run.totalUsage()];
  },
  raw: async () => {
    const { data, response } = await chat({}).withResponse();
    return [data, response.status, response.headers.get("x-request-id"), response.headers.get("content-type")];
  },
  cutStream: () => all(chat({ stream: true, user: "cut" })),
  cutWhole: () => chat({ user: "cut" }),
  slow: () => chat({ user: "429" }),
  wrong: () => chat({ user: "400" }),
  broken: () => chat({ user: "500" }),
  missing: () => client.models.retrieve("unknown"),
  models: () => all(client.models.list()),
  embeddings: () => client.embeddings.create({ model: "e", input: ["a", "b"] }),
  completions: () => client.completions.create({ model: "c", prompt: "Once" }),
  responses: () => client.responses.create({ model: "r", input: "hi" }),
  responsesStream: () => all(client.responses.create({ model: "r", input: "hi", stream: true })),
  speech: async () => [...new Uint8Array(await (await client.audio.speech.create({ model: "s", voice: "v", input: "hi" })).arrayBuffer())],
  transcription: async () => client.audio.transcriptions.create({ model: "w", file: await toFile(Buffer.alloc(100000, 7), "a.wav") }),
  remove: () => client.files.delete("file-1"),
};

for (const [name, call] of Object.entries(calls)) {
  let result;
  try {
    result = { value: await call() };
  } catch (error) {
    const retry = error.headers?.get?.("retry-after") ?? null;
    result = { error: error.constructor.name, status: error.status ?? null, message: error.message, retry };
  }
  console.log(JSON.stringify({ name, ...result }));
}
