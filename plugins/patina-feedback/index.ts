/**
 * Feedback from OpenClaw to Patina.
 *
 * - `/feedback <text>`, `/good` and `/bad` are about the newest reply of the session in which they are typed. A reply is kept under its session
 *   key with the id of its completion; replies of other sessions, and of background runs, never count.
 * - Requests of background runs (heartbeat, cron, memory, …) carry `X-Turn-Type: side`.
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
 * What is known of this process's sessions: `replies` by session key, `triggers` (of the run under way) by session id. OpenClaw loads a plugin
 * once for each of its registries; all instances share this.
 */
function shared(): { replies: Recent<Reply>; triggers: Recent<string> } {
  const place = globalThis as any;
  place[STATE] ??= { replies: new Recent<Reply>(), triggers: new Recent<string>() };
  return place[STATE];
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
    const { replies, triggers } = shared();
    const log = (text: string) => config.debug && api.logger.info(`patina-feedback: ${text}`);

    api.on("llm_input", (event, ctx) => {
      triggers.set(event.sessionId, ctx.trigger ?? "user");
      log(`run ${event.runId} of ${ctx.sessionKey}: ${ctx.trigger}`);
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
          const trigger = options?.sessionId ? triggers.get(options.sessionId) : undefined;
          const isSide = trigger !== undefined && trigger !== "user";
          const headers = isSide ? { ...options?.headers, "X-Turn-Type": "side" } : options?.headers;
          return inner(model, context, { ...options, headers });
        };
      },
    });

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

    async function send(sessionKey: string | undefined, what: { text?: string; thumbs?: string }) {
      const reply = sessionKey ? replies.get(sessionKey) : undefined;
      if (!reply) return { text: NO_CONVERSATION };
      const turn = reply.completionId
        ? { completion_id: reply.completionId }
        : { prompt: reply.prompt, response: reply.response };
      try {
        const answer = await ask("POST", "/feedback", { ...turn, ...what });
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
