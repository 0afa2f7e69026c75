//! Tool servers.

use sandbox_agent_sdk::PermissionPolicy;
use sandbox_agent_sdk::config::{LocalMcpServer, McpServerConfig};
use sdk_tests::agents::{mcp_listed, mcp_server};

use crate::{
    bench::{Bench, ask, until},
    cell::{Cell, Seen},
};

/// A tool server with the tool `fortune`.
pub(super) fn tool_server(bench: &Bench) -> McpServerConfig {
    let script = mcp_server(bench.home.folder()).display().to_string();
    McpServerConfig::Local(LocalMcpServer::new(sdk_tests::agents::node()).args([script]))
}

pub(super) async fn a_tool_server_is_used(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::BypassPermissions)).await;
    let new = bench.new_session().mcp_server("fortunes", &tool_server(&bench));
    let session = connected.session(new).await;
    // Some agents start tool servers in the background.
    let listed = mcp_listed(bench.home.folder());
    until("the agent asks for the tools", || listed.exists()).await;
    let log = ask(&session, "call fortune {}").await;
    if log.ended().text().contains("a long journey") {
        return Seen::Works;
    }
    let offered = || {
        let last = bench.model.turns().pop().expect("a request");
        last.tool_names().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(log.text().contains("there is no tool for"), "{} {:?}", log.text(), offered());
    // Some agents offer the tools of tool servers only after the model has searched for them.
    assert!(offered().iter().any(|name| name == "tool_search"), "{:?}", offered());
    ask(&session, r#"call tool_search {"query":"fortune"}"#).await.ended();
    let log = ask(&session, "call fortune {}").await;
    assert!(log.ended().text().contains("a long journey"), "{} {:?}", log.text(), offered());
    Seen::note("the model has to search for the tool first")
}
