//! Gives an agent access to one directory of this machine, and to a few commands in a sandbox.
//!
//! The embedded server's agent writes a file, reads a part of it, runs a command on it, and tries to escape.

use mock_server::{MockServer, Script, Step, Terminal};
use sandbox_agent_sdk::NewSession;
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::tools::{ConfinedFiles, Roots, Sandbox, TerminalOptions};
use sdk_examples::Server;
use serde_json::json;

/// The steps of the embedded agent. It sees the directory as `/work`.
fn busy() -> Script {
    let terminal = |command: &str, args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Step::Terminal(Terminal { command: command.to_owned(), args })
    };
    let say = |text: &str| Step::Say(text.to_owned());
    Script::steps(vec![
        Step::WriteFile { path: "/work/notes/todo.txt".into(), content: "one\ntwo\nthree\n".into() },
        say("\n"),
        Step::Request {
            method: "fs/read_text_file".into(),
            params: json!({"path": "/work/notes/todo.txt", "line": 2, "limit": 1}),
        },
        terminal("wc", &["-l", "notes/todo.txt"]),
        say("outside the directory:\n"),
        Step::ReadFile { path: "/work/../etc/passwd".into() },
        say("\n"),
        terminal("rm", &["-rf", "/"]),
        say("\n"),
    ])
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::find_or_start(MockServer::builder().agent("mock", busy())).await;

    // The agent sees this directory as `/work`. It is new and private: other users could prepare one with a known name.
    let directory = tempfile::tempdir()?;
    let roots = Roots::new().and_as("/work", directory.path());
    let files = ConfinedFiles::open(roots.clone())?.write_limit(1 << 20);
    let mut terminals = TerminalOptions::new(roots).allow_only(["wc", "ls", "cat"]).output_limit(64 << 10);
    // The list controls which programs start; the sandbox controls what they can do.
    match Sandbox::detect() {
        Ok(sandbox) => terminals = terminals.sandbox(sandbox),
        // The agent of the mock server runs only the commands above. With a real agent, the program ends here.
        Err(error) if server.embedded.is_some() => {
            eprintln!("commands run WITHOUT a sandbox: {error}");
        }
        Err(error) => return Err(error.into()),
    }

    // Both are off by default. The client advertises them to the agent because they are set.
    let client = server.options().files(files).terminals(terminals).build()?;
    let session = client.new_session(NewSession::in_dir("/work")).await?;
    println!("{}", printable(&session.prompt("count my tasks").text().await?));

    for answer in server.embedded.iter().flat_map(MockServer::answers) {
        let what = answer.answer.get("result").or_else(|| answer.answer.get("error"));
        println!("{:<22} {}", answer.method, printable(&what.unwrap_or(&json!(null)).to_string()));
    }
    println!("on this machine: {:?}", std::fs::read_to_string(directory.path().join("notes/todo.txt"))?);

    // Disconnecting kills commands that are still running.
    client.disconnect().await?;
    directory.close()?;
    Ok(())
}
