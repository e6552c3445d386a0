/**
 * Feedback from OpenClaw to Patina.
 *
 * - `/feedback <text>`, `/good` and `/bad` are about the newest reply of the session in which they are typed. A reply is kept under its session
 *   key with the id of its completion; replies of other sessions, and of background runs, never count.
 * - Requests of background runs (heartbeat, cron, memory, …) carry `X-Turn-Type: side`.
 * - A reaction (👍, 👎, …) to a message of a channel is about the reply that the message shows. OpenClaw reports it with the next run of the session.
 * - `/undo` serves the version before the live one again; only the owner may use it.
 */
import { definePluginEntry } from "openclaw/plugin-sdk/plugin-entry";

const PROVIDER = "patina";
const STATE = Symbol.for("patina-feedback.state");
const MAX_SESSIONS = 1000;
const REQUEST_MS = 15_000;
const POLL_MS = 500;
const WAIT_S = 20;
const NO_CONVERSATION =
  "No recent conversation found. Chat with the bot first, then use /feedback.";

/** As OpenClaw reports it within a request: "System: [time] Telegram reaction added: 👍 by Ann on msg 42". */
const REACTION = /System: \[[^\]]*\] [\w ]+ reaction added: (\S+) by .{1,80}? on msg (\w+)/g;
const PRAISE = new Set([..."👍❤🔥👏🎉💯🙏👌🏆"]);
const BLAME = new Set([..."👎💩🤮😡🤬"]);

type Reply = { completionId?: string; prompt: string; response: string };
type Config = { patinaUrl: string; apiKey: string; waitSeconds?: number; debug?: boolean };
type Fate = { stage: string; drop_reason: string | null; version: number | null; is_live: boolean; policy: string };

/** A map that forgets its oldest key. */
class Recent<V> extends Map<string, V> {
  override set(key: string, value: V): this {
    this.delete(key);
    super.set(key, value);
    if (this.size > MAX_SESSIONS) this.delete(this.keys().next().value as string);
    return this;
  }
}

/**
 * What is known of this process's sessions: `replies` by session key, `runs` (the one under way) by session id, `sent` by session key and
 * the channel's id of the message, `reactions` that were reported. OpenClaw loads a plugin once for each of its registries; all instances share this.
 */
type Run = { trigger: string; sessionKey?: string };
type State = { replies: Recent<Reply>; runs: Recent<Run>; sent: Recent<Reply>; reactions: Recent<true> };

function shared(): State {
  const place = globalThis as any;
  place[STATE] ??= { replies: new Recent(), runs: new Recent(), sent: new Recent(), reactions: new Recent() };
  return place[STATE];
}

function thumbsOf(emoji: string): string | undefined {
  const first = [...emoji][0];
  return PRAISE.has(first) ? "up" : BLAME.has(first) ? "down" : undefined;
}

class PatinaError extends Error {}

function client(config: Config) {
  const base = config.patinaUrl.replace(/\/+$/, "").replace(/\/v1$/, "");
  return async (method: string, path: string, body?: unknown): Promise<any> => {
    let answer: Response;
    try {
      answer = await fetch(`${base}/v1${path}`, {
        method,
        headers: { authorization: `Bearer ${config.apiKey}`, "content-type": "application/json" },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: AbortSignal.timeout(REQUEST_MS),
      });
    } catch (error) {
      throw new PatinaError(`Patina does not answer at ${base}: ${String(error)}`);
    }
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new PatinaError(found?.error?.message ?? `Patina answered ${answer.status}`);
    return found;
  };
}

export default definePluginEntry({
  id: "patina-feedback",
  name: "Patina feedback",
  description: "Sends what you say about a reply to Patina, and marks background requests",
  register(api) {
    const config = (api.pluginConfig ?? {}) as Config;
    if (!config.patinaUrl || !config.apiKey) {
      api.logger.error("patina-feedback: set patinaUrl and apiKey (patina openclaw --write does)");
      return;
    }
    const ask = client(config);
    const { replies, runs, sent, reactions } = shared();
    const log = (text: string) => config.debug && api.logger.info(`patina-feedback: ${text}`);

    api.on("llm_input", (event, ctx) => {
      runs.set(event.sessionId, { trigger: ctx.trigger ?? "user", sessionKey: ctx.sessionKey });
      log(`run ${event.runId} of ${ctx.sessionKey}: ${ctx.trigger}`);
    });

    api.on("message_sent", (event, ctx) => {
      const key = event.sessionKey ?? ctx.sessionKey;
      const id = event.messageId ?? ctx.messageId;
      const reply = key ? replies.get(key) : undefined;
      const text = event.content?.trim();
      if (!event.success || !id || !reply || !text || !reply.response.includes(text)) return;
      sent.set(`${key} ${id}`, reply);
      log(`message ${id} of ${key}`);
    });

    api.on("llm_output", (event, ctx) => {
      const response = event.assistantTexts.join("\n").trim();
      if (event.provider !== PROVIDER || !ctx.sessionKey || !response) return;
      if ((ctx.trigger ?? "user") !== "user") return;
      const last = event.lastAssistant as { responseId?: string } | undefined;
      replies.set(ctx.sessionKey, {
        completionId: last?.responseId,
        prompt: event.prompt ?? "",
        response,
      });
      log(`reply ${last?.responseId} of ${ctx.sessionKey}`);
    });

    api.registerProvider({
      id: PROVIDER,
      label: "Patina",
      auth: [],
      wrapStreamFn: (ctx) => {
        const inner = ctx.streamFn;
        if (!inner) return undefined;
        return (model, context, options) => {
          const run = options?.sessionId ? runs.get(options.sessionId) : undefined;
          const isSide = run !== undefined && run.trigger !== "user";
          if (run?.sessionKey) readReactions(run.sessionKey, JSON.stringify(context.messages?.slice(-2) ?? []));
          const headers = isSide ? { ...options?.headers, "X-Turn-Type": "side" } : options?.headers;
          return inner(model, context, { ...options, headers });
        };
      },
    });

    /** Sends the reactions that a request reports, each once. */
    function readReactions(sessionKey: string, text: string) {
      for (const [line, emoji, message] of text.matchAll(REACTION)) {
        const thumbs = thumbsOf(emoji);
        const reply = sent.get(`${sessionKey} ${message}`);
        if (!thumbs || !reply || reactions.has(`${sessionKey} ${line}`)) continue;
        reactions.set(`${sessionKey} ${line}`, true);
        void tell(reply, { thumbs }).catch((error) => api.logger.warn(`patina-feedback: ${error.message}`));
      }
    }

    /** Waits for the version that a turn trained. */
    async function learnt(turnId: string): Promise<string> {
      const start = Date.now();
      const end = start + (config.waitSeconds ?? WAIT_S) * 1000;
      for (;;) {
        const fate = (await ask("GET", `/patina/turns/${turnId}`)) as Fate;
        if (fate.version !== null && fate.is_live) {
          return `learnt in ${fate.policy}@${fate.version} (${Math.round((Date.now() - start) / 1000)} s)`;
        }
        if (fate.drop_reason) return `Feedback noted; it does not train: ${fate.drop_reason}`;
        if (Date.now() >= end) return "Feedback noted";
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
    }

    async function tell(reply: Reply, what: { text?: string; thumbs?: string }): Promise<any> {
      const turn = reply.completionId
        ? { completion_id: reply.completionId }
        : { prompt: reply.prompt, response: reply.response };
      return ask("POST", "/feedback", { ...turn, ...what });
    }

    async function send(sessionKey: string | undefined, what: { text?: string; thumbs?: string }) {
      const reply = sessionKey ? replies.get(sessionKey) : undefined;
      if (!reply) return { text: NO_CONVERSATION };
      try {
        const answer = await tell(reply, what);
        log(`feedback on ${answer.turn_id} of ${sessionKey}`);
        if (answer.trains === false) return { text: `Feedback noted; it does not train: ${answer.reason}` };
        return { text: await learnt(answer.turn_id) };
      } catch (error) {
        if (!(error instanceof PatinaError)) throw error;
        return { text: error.message };
      }
    }

    api.registerCommand({
      name: "feedback",
      description: "Say what was wrong or right with the last reply",
      acceptsArgs: true,
      handler: async (ctx) => {
        const text = ctx.args?.trim();
        if (!text) return { text: "Usage: /feedback <your feedback here>" };
        return send(ctx.sessionKey, { text });
      },
    });
    for (const [name, thumbs] of [["good", "up"], ["bad", "down"]]) {
      api.registerCommand({
        name,
        description: `The last reply was ${name}`,
        acceptsArgs: true,
        handler: async (ctx) => send(ctx.sessionKey, { thumbs, text: ctx.args?.trim() || undefined }),
      });
    }
    api.registerCommand({
      name: "undo",
      description: "Serve the version before the live one again",
      requiredScopes: ["operator.admin"],
      handler: async () => {
        try {
          const [job] = (await ask("GET", "/fine_tuning/jobs")).data;
          const done = await ask("POST", `/fine_tuning/jobs/${job.id}/rollback`);
          return { text: done.fine_tuned_model ? `${done.fine_tuned_model} is live again` : "the base model is live again" };
        } catch (error) {
          if (!(error instanceof PatinaError)) throw error;
          return { text: error.message };
        }
      },
    });
  },
});
