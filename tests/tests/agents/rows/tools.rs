//! Tool servers.

use sandbox_agent_sdk::{LocalMcpServer, McpServerConfig, PermissionPolicy};
use sdk_tests::agents::mcp_server;

use crate::{
    bench::{Bench, ask},
    cell::{Cell, Seen},
};

pub(super) async fn a_tool_server_is_used(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::BypassPermissions)).await;
    let script = mcp_server(bench.home.folder());
    let node = sdk_tests::agents::node();
    let server = LocalMcpServer::new(node).args([script.display().to_string()]);
    let new = bench.new_session().mcp_server("fortunes", &McpServerConfig::Local(server));
    let session = connected.session(new).await;
    let told = ask(&session, "call fortune {}").await;
    assert_eq!(told.ended().text().contains("a long journey"), true, "{}", told.text());
    Seen::Works
}
