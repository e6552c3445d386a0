// The Node SDKs' own accumulators, fed with event streams cut anywhere. Reads one JSON object a line from standard input,
// {api, pieces (base64)}, and writes what the SDK made of it, a line each.
import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(process.cwd() + '/package.json');
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const { OpenAI } = await load('openai');
const { default: Anthropic } = await load('@anthropic-ai/sdk');

let pieces = [];
const fetch = async () => {
  const body = new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(new Uint8Array(Buffer.from(piece, 'base64')));
      controller.close();
    },
  });
  return new Response(body, { headers: { 'content-type': 'text/event-stream' } });
};
const openai = new OpenAI({ baseURL: 'http://127.0.0.1/v1', apiKey: 'k', maxRetries: 0, fetch });
const anthropic = new Anthropic({ baseURL: 'http://127.0.0.1', apiKey: 'k', maxRetries: 0, fetch });
const apis = {
  responses: () => openai.responses.stream({ model: 'm', input: 'a' }).finalResponse(),
  messages: () => anthropic.messages.stream({ model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'a' }] }).finalMessage(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  pieces = asked.pieces;
  let made;
  try {
    made = await apis[asked.api]();
  } catch (error) {
    made = { failed: String(error.stack) };
  }
  process.stdout.write(JSON.stringify(made) + '\n');
}
