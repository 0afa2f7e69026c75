// A whole session with an independent client, over /v1/rpc or over /v1/acp/{id}. Prints the result.
import { AcpHttpClient } from "acp-http-client";

const [baseUrl, path, agentInQuery] = process.argv.slice(2);
const updates = [];
const asked = [];
const transport = { path, bootstrapQuery: agentInQuery ? { agent: agentInQuery } : undefined };
const client = new AcpHttpClient({
  baseUrl,
  transport,
  client: {
    sessionUpdate: async ({ update }) => updates.push(update),
    requestPermission: async ({ options }) => {
      asked.push(options.map((option) => option.kind));
      return { outcome: { outcome: "selected", optionId: options[0].optionId } };
    },
  },
});
const _meta = { "sandboxagent.dev": { agent: "mock" } };
const capabilities = await client.initialize({ protocolVersion: 1, clientCapabilities: {}, _meta });
const session = await client.newSession({ cwd: "/", mcpServers: [], _meta });
const { sessionId } = session;
const prompt = async (text) => {
  const seen = updates.length;
  const { stopReason } = await client.prompt({ sessionId, prompt: [{ type: "text", text }] });
  // The body may overtake the last updates, and this client does not wait for them.
  while (!updates.slice(seen).some((update) => update.content?.text?.endsWith(text.split(" ").pop()))) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const text_of = (update) => (update.sessionUpdate === "agent_message_chunk" ? update.content.text : "");
  return { stopReason, text: updates.slice(seen).map(text_of).join("") };
};
const first = await prompt("hello from node");
const second = await prompt("permission please");
const mode = await client.setSessionMode({ sessionId, modeId: "plan" });
const loaded = await client.loadSession({ sessionId, cwd: "/", mcpServers: [] });
// This client does not settle a call whose POST failed; the failure shows as an unhandled rejection.
const unhandled = new Promise((resolve) =>
  process.on("unhandledRejection", (error) => resolve({ status: error.status })),
);
const crash = client.prompt({ sessionId, prompt: [{ type: "text", text: "crash" }] }).then(
  (result) => ({ result }),
  (error) => ({ code: error.code }),
);
const error = await Promise.race([crash, unhandled]);
await client.disconnect();
console.log(
  JSON.stringify({
    version: capabilities.protocolVersion,
    modes: session.modes.availableModes.length,
    first,
    second,
    asked,
    mode,
    loaded: loaded !== undefined,
    error,
  }),
);
process.exit(0);
