// Three turns with a tool and a complaint, by the Node SDKs of OpenAI and Anthropic and the Vercel AI SDK, streamed.
// node node_client.mjs URL KEY CLIENT; prints the last texts as JSON.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [, , url, key, client] = process.argv;
const require = createRequire(process.cwd() + '/package.json');
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const texts = ['Please use the tool.', 'No, that is wrong. Answer shorter.', 'Thanks, perfect.'];
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false };
const weather = ({ city }) => `5 degrees in ${city}`;
const said = [];

const openai = async () => new (await load('openai')).OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });

async function byChat() {
  const api = await openai();
  const messages = [];
  for (const text of texts) {
    messages.push({ role: 'user', content: text });
    const runner = api.chat.completions.runTools({
      model: 'tiny', stream: true, messages,
      tools: [{ type: 'function', function: { name: 'weather', parameters: schema, parse: JSON.parse, function: weather } }],
    });
    said.push(await runner.finalContent());
    messages.splice(0, messages.length, ...runner.messages);
  }
}

async function byResponses(link) {
  const api = await openai();
  const conversation = link === 'conversation' ? (await api.conversations.create()).id : null;
  const tools = [{ type: 'function', name: 'weather', parameters: schema, strict: true }];
  const history = [];
  let previous = null;
  for (const text of texts) {
    let input = [{ role: 'user', content: text }];
    for (;;) {
      history.push(...input);
      const stream = api.responses.stream({ model: 'tiny', tools, ...{
        history: { input: history, store: false },
        previous: { input, previous_response_id: previous },
        conversation: { input, conversation },
      }[link] });
      const response = await stream.finalResponse();
      previous = response.id;
      history.push(...response.output.map(({ parsed_arguments, ...item }) => item));
      input = response.output.filter((item) => item.type === 'function_call').map((item) => (
        { type: 'function_call_output', call_id: item.call_id, output: weather(JSON.parse(item.arguments)) }));
      if (!input.length) { said.push(response.output_text); break; }
    }
  }
  if (conversation) {
    const items = [];
    for await (const item of api.conversations.items.list(conversation, { order: 'asc', limit: 2 })) items.push(item);
    assert.equal(items.length, history.length);
    const where = { conversation_id: conversation };
    assert.deepEqual(await api.conversations.items.retrieve(items[0].id, where), items[0]);
    await api.conversations.items.delete(items[0].id, where);
    const left = await api.conversations.items.list(conversation, { order: 'asc' });
    assert.deepEqual(left.data.map((item) => item.id), items.slice(1).map((item) => item.id));
  }
}

async function byMessages() {
  const { default: Anthropic } = await load('@anthropic-ai/sdk');
  const api = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
  const messages = [];
  for (const text of texts) {
    messages.push({ role: 'user', content: text });
    for (;;) {
      const message = await api.messages.stream({
        model: 'tiny', max_tokens: 100, messages, tools: [{ name: 'weather', input_schema: schema }],
      }).finalMessage();
      messages.push({ role: 'assistant', content: message.content });
      const calls = message.content.filter((block) => block.type === 'tool_use');
      if (!calls.length) { said.push(message.content.map((block) => block.text).join('')); break; }
      messages.push({ role: 'user', content: calls.map((call) => (
        { type: 'tool_result', tool_use_id: call.id, content: weather(call.input) })) });
    }
  }
}

async function byVercel(provider) {
  const { generateObject, streamText, tool, jsonSchema, stepCountIs } = await load('ai');
  const model = provider === 'anthropic'
    ? (await load('@ai-sdk/anthropic')).createAnthropic({ baseURL: `${url}/v1`, apiKey: key })('tiny')
    : (await load('@ai-sdk/openai')).createOpenAI({ baseURL: `${url}/v1`, apiKey: key })('tiny');
  const tools = { weather: tool({ description: 'The weather', inputSchema: jsonSchema(schema), execute: weather }) };
  const messages = [];
  for (const text of texts) {
    messages.push({ role: 'user', content: text });
    const result = streamText({ model, messages, tools, stopWhen: stepCountIs(5), maxRetries: 0, onError: ({ error }) => { throw error; } });
    said.push(await result.text);
    messages.push(...(await result.response).messages);
  }
  const { object } = await generateObject({ model, schema: jsonSchema(schema), prompt: 'Extract the city: Oslo is cold.', maxRetries: 0 });
  said.push(object.city);
}

await ({
  'openai-chat': byChat,
  'openai-responses': () => byResponses('history'),
  'openai-previous': () => byResponses('previous'),
  'openai-conversation': () => byResponses('conversation'),
  anthropic: byMessages,
  'vercel-openai': () => byVercel('openai'),
  'vercel-anthropic': () => byVercel('anthropic'),
})[client]();
console.log(JSON.stringify(said));
