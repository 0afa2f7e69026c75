//! Every operation of the server's OpenAPI document is covered, or listed here as excluded.
//!
//! The released server does not serve its document. The TypeScript SDK of the same version has types that were
//! generated from it, with one member per operation. `operations.txt` lists the same names with methods and paths.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mock_server::MockServer;
use sandbox_agent_sdk::config::{LocalMcpServer, McpServerConfig, SkillsConfig};
use sandbox_agent_sdk::connection::http_client_builder;
use sandbox_agent_sdk::control::FsMove;
use sandbox_agent_sdk::control::desktop::{
    KeyModifiers, LaunchApp, MouseButton, Region, ScreenshotOptions, Selection, StartDesktop,
};
use sandbox_agent_sdk::control::processes::{CreateProcess, LogQuery, RunProcess};
use sandbox_agent_sdk::control::terminal::TerminalSize;
use sandbox_agent_sdk::{ClientOptions, SandboxAgentClient, ServerKind};
use sdk_tests::{Unavailable, say_not_run, typescript_sdk, within};

use super::{Kind, Server, VERSION};

const OPERATIONS: &str = include_str!("operations.txt");

/// The excluded operations, with the reason.
const LEFT_OUT: [(&str, &str); 1] =
    [("get_v1_desktop_stream_ws", "signalling for a WebRTC client, which this SDK does not have")];

/// An operation: name, method, and path with variables in braces.
#[derive(Debug, Clone, Copy)]
struct Operation {
    name: &'static str,
    method: &'static str,
    path: &'static str,
}

impl Operation {
    /// Returns whether a request belongs to this operation.
    fn is(&self, method: &str, path: &str) -> bool {
        let fits =
            |(wanted, seen): (&str, &str)| wanted == seen || (wanted.starts_with('{') && !seen.is_empty());
        let segments = |path: &str| path.split('/').count();
        self.method == method
            && segments(self.path) == segments(path)
            && self.path.split('/').zip(path.split('/')).all(fits)
    }

    /// Returns the number of variables in the path.
    fn variables(&self) -> usize {
        self.path.matches('{').count()
    }
}

fn operations() -> Vec<Operation> {
    let operation = |line: &'static str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, method, path] = words[..] else { panic!("{line:?}") };
        Operation { name, method, path }
    };
    OPERATIONS.lines().map(operation).collect()
}

/// Returns the operation of a request: the matching one with the fewest variables.
fn operation_of(method: &str, path: &str) -> Option<&'static str> {
    let all = operations().into_iter().filter(|operation| operation.is(method, path));
    all.min_by_key(Operation::variables).map(|operation| operation.name)
}

#[tokio::test]
async fn the_list_of_operations_matches_the_servers_document() {
    let listed: BTreeSet<&str> = operations().iter().map(|operation| operation.name).collect();
    assert_eq!(listed.len(), 71);
    let kept = || Path::new(env!("CARGO_TARGET_TMPDIR")).join("released");
    let folder = std::env::var_os("SDK_TESTS_RELEASED").map_or_else(kept, PathBuf::from);
    let package = match typescript_sdk(&folder, VERSION).await {
        Ok(package) => package,
        Err(Unavailable(why)) => {
            assert!(std::env::var_os("CI").is_none(), "the TypeScript SDK cannot be fetched: {why}");
            return say_not_run(&format!("the TypeScript SDK cannot be fetched: {why}"));
        }
    };
    let types = fs::read_to_string(package.join("dist/index.d.ts")).expect("its types");
    let (_, members) = types.split_once("\ninterface operations {\n").expect("the operations");
    let (members, _) = members.split_once("\n}\n").expect("their end");
    let name = |line: &str| Some(line.strip_prefix("    ")?.strip_suffix(": {")?.to_owned());
    let documented: BTreeSet<String> = members
        .lines()
        .filter_map(name)
        .filter(|name| name.contains("_v1_") && !name.starts_with(' '))
        .collect();
    assert_eq!(documented.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed);
}

#[tokio::test]
async fn the_released_server_has_every_operation_of_the_list() {
    let Some(server) = Server::start(Kind::Released).await else { return };
    let http = http_client_builder().no_proxy().build().expect("a client");
    for operation in operations() {
        // An unknown method of a known path is 405. An unknown path is a problem.
        let url = format!("{}{}", server.url(), operation.path.replace(['{', '}'], ""));
        let probe = http.request(reqwest::Method::OPTIONS, &url).send();
        let response = within(operation.name, probe).await.expect("a response");
        let status = response.status();
        let allowed =
            response.headers().get("allow").map(|allow| allow.to_str().unwrap_or_default().to_owned());
        assert_ne!(status, 404, "{operation:?}");
        if let Some(allowed) = allowed {
            assert!(allowed.contains(operation.method), "{operation:?}: {allowed}");
        }
    }
}

#[tokio::test]
async fn every_operation_is_covered_or_listed_as_excluded() {
    let server = MockServer::start().await;
    let options = ClientOptions::new(server.url()).agent("mock").server(ServerKind::PerAgent);
    let client = SandboxAgentClient::new(options.auto_connect(false)).expect("a client");
    within("connecting", client.connect()).await.expect("a connection");
    within("calling", every_call(&client)).await;
    within("disconnecting", client.disconnect()).await.expect("it is disconnected");
    let seen: BTreeSet<&str> =
        server.requests().iter().filter_map(|request| operation_of(&request.method, &request.path)).collect();
    let all: BTreeSet<&str> = operations().iter().map(|operation| operation.name).collect();
    let missing: BTreeSet<&str> = all.difference(&seen).copied().collect();
    assert_eq!(missing, LEFT_OUT.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>());
    assert!(LEFT_OUT.iter().all(|(_, why)| !why.is_empty()));
}

/// Makes every call and ignores the results, which other tests check. The desktop is not installed here.
async fn every_call(client: &SandboxAgentClient) {
    let (files, agents, config) = (client.files(), client.agents(), client.config());
    let _ = client.health().check().await;
    let _ =
        (agents.list().await, agents.get("mock").await, agents.running().await, agents.install("mock").await);
    let _ = (files.make_directory("/d").await, files.write("/d/x", "y").await, files.list("/d").await);
    let _ =
        (files.stat("/d/x").await, files.read("/d/x").await, files.rename(FsMove::new("/d/x", "/d/y")).await);
    let _ = (files.delete("/d/y").await, files.upload_tar("/d", vec![0; 1024]).await);
    let mcp: McpServerConfig = LocalMcpServer::new("x").into();
    let _ = (config.set_mcp_server("/c", "m", &mcp).await, config.mcp_server("/c", "m").await);
    let _ = (
        config.delete_mcp_server("/c", "m").await,
        config.set_skills("/c", "s", &SkillsConfig::default()).await,
    );
    let _ = (config.skills("/c", "s").await, config.delete_skills("/c", "s").await);

    let processes = client.processes();
    let limits = processes.config().await.expect("the limits");
    let _ = (processes.set_config(&limits).await, processes.run(RunProcess::new("true")).await);
    let id = processes.create(CreateProcess::new("cat").tty(true)).await.expect("a process").id;
    let _ = (processes.list().await, processes.get(&id).await, processes.logs(&id, LogQuery::new()).await);
    let _ = (
        processes.send_input(&id, "x").await,
        processes.resize_terminal(&id, TerminalSize::new(80, 24)).await,
    );
    let _ = processes.connect_terminal(&id).await;
    let _ = (processes.stop(&id).await, processes.kill(&id).await, processes.delete(&id).await);
    every_call_of_the_desktop(client).await;
}

async fn every_call_of_the_desktop(client: &SandboxAgentClient) {
    let desktop = client.desktop();
    let _ = (desktop.status().await, desktop.start(StartDesktop::new()).await, desktop.stop().await);
    let region = Region { x: 0, y: 0, width: 1, height: 1 };
    let _ = (desktop.display_info().await, desktop.screenshot(ScreenshotOptions::new()).await);
    let _ = desktop.screenshot_region(region, ScreenshotOptions::new()).await;
    let left = MouseButton::Left;
    let _ = (desktop.mouse_position().await, desktop.move_mouse(1, 1).await, desktop.click(1, 1).await);
    let _ = (desktop.mouse_down(left, None).await, desktop.mouse_up(left, Some((1, 1))).await);
    let _ = (desktop.drag_mouse((1, 1), (2, 2), left).await, desktop.scroll((1, 1), 0, 1).await);
    let _ = (desktop.type_text("x").await, desktop.press_key("a", KeyModifiers::none().ctrl()).await);
    let _ = (desktop.key_down("a").await, desktop.key_up("a").await);
    let _ = (desktop.windows().await, desktop.focused_window().await, desktop.focus_window("1").await);
    let _ = (desktop.move_window("1", 0, 0).await, desktop.resize_window("1", 1, 1).await);
    let _ =
        (desktop.clipboard(Selection::Clipboard).await, desktop.set_clipboard("x", Selection::Both).await);
    let _ = (desktop.launch(LaunchApp::new("x")).await, desktop.open("/x").await);
    let _ = (desktop.start_recording().await, desktop.stop_recording().await, desktop.recordings().await);
    let _ = (
        desktop.recording("r").await,
        desktop.download_recording("r").await,
        desktop.delete_recording("r").await,
    );
    let _ = (desktop.start_stream().await, desktop.stop_stream().await, desktop.stream_status().await);
}
