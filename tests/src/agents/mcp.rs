//! A tool server for agents: one tool, on standard streams.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Responds to the requests of a Model Context Protocol client.
const SERVER: &str = r#"
const lines = require("readline").createInterface({ input: process.stdin });
const send = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
lines.on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const tool = { name: "fortune", description: "Tells a fortune", inputSchema: { type: "object", properties: {} } };
  const results = {
    initialize: { protocolVersion: params?.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "fortunes", version: "1" } },
    ping: {},
    "tools/list": { tools: [tool] },
    "tools/call": { content: [{ type: "text", text: "a long journey" }] },
  };
  if (method === "tools/list") require("fs").writeFileSync(__filename + ".listed", "");
  if (method in results) send({ id, result: results[method] });
  else send({ id, error: { code: -32601, message: "Method not found" } });
});
"#;

/// Writes a tool server with the tool `fortune` into `folder`; node runs it.
///
/// # Panics
/// When the folder cannot be written to.
pub fn mcp_server(folder: &Path) -> PathBuf {
    let path = folder.join("fortunes.cjs");
    fs::write(&path, SERVER).expect("a file");
    path
}

/// The file that exists when the tool server in `folder` has been asked for its tools.
pub fn mcp_listed(folder: &Path) -> PathBuf {
    folder.join("fortunes.cjs.listed")
}

/// The path of node, which agents may look for in other places than this program.
///
/// # Panics
/// If node is not installed.
pub fn node() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("node"));
    places.find(|place| place.is_file()).expect("node is installed").display().to_string()
}
