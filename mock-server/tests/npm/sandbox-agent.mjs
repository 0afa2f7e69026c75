// The SDK of the released server, used as an application would. Prints what it saw.
import { SandboxAgent } from "sandbox-agent";

const [baseUrl, token] = process.argv.slice(2);
const client = await SandboxAgent.connect({ baseUrl, token });
const health = await client.getHealth();
const agents = await client.listAgents();
const install = await client.installAgent("mock", {});
await client.writeFsFile({ path: "/notes/hello.txt" }, "hello");
const file = new TextDecoder().decode(await client.readFsFile({ path: "/notes/hello.txt" }));
const entries = await client.listFsEntries({ path: "/notes" });
await client.setMcpConfig({ directory: "/", mcpName: "tool" }, { type: "remote", url: "http://127.0.0.1:9" });
const mcp = await client.getMcpConfig({ directory: "/", mcpName: "tool" });
const session = await client.createSession({ agent: "mock", cwd: "/", mode: "plan", model: "mock-fast" });
const texts = [];
session.onEvent(({ payload, sender }) => {
  const update = payload.params?.update;
  if (sender === "agent" && update?.sessionUpdate === "agent_message_chunk") texts.push(update.content.text);
});
const replies = [];
session.onPermissionRequest(async (request) => {
  replies.push(request.availableReplies);
  await client.respondPermission(request.id, "once");
});
const until = async (word) => {
  while (!texts.join("").includes(word)) await new Promise((resolve) => setTimeout(resolve, 5));
};
const first = await session.prompt([{ type: "text", text: "hello from the sdk" }]);
await until("mock: hello from the sdk");
const second = await session.prompt([{ type: "text", text: "permission please" }]);
await until("permission: allow_once");
const servers = await client.listAcpServers();
const refused = await client.getAgent("nobody").then(
  () => undefined,
  (error) => ({ status: error.status, type: error.problem?.type }),
);
await client.dispose();
console.log(
  JSON.stringify({
    health,
    agents: agents.agents.map((agent) => agent.id),
    install,
    file,
    entries: entries.map((entry) => entry.name),
    mcp,
    first,
    second,
    replies,
    servers: servers.servers.length,
    refused,
  }),
);
process.exit(0);
