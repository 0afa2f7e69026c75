//! The programs of the examples, with an installed agent.

use std::{fs, os::unix::fs::symlink, process::Stdio};

use sdk_examples::agents::KnownAgent;
use sdk_tests::agents::RealAgent;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    bench::{Bench, in_time},
    cell::{Cell, Seen},
};

/// The agent, as the examples know it.
fn known(agent: RealAgent) -> KnownAgent {
    KnownAgent::named(agent.name()).expect("the examples know the agent")
}

/// Fails unless the examples start the agents as the suite does.
pub(crate) fn check() {
    assert_eq!(
        sdk_examples::agents::KNOWN_AGENTS.map(|agent| agent.name),
        RealAgent::ALL.map(RealAgent::name)
    );
    for agent in RealAgent::ALL {
        let known = known(agent);
        assert_eq!(known.arguments, agent.arguments(), "{agent}");
        let pinned = format!("{}@{}", agent.package(), agent.version());
        assert!(known.package == agent.package() || known.package == pinned, "{agent}: {}", known.package);
    }
}

/// A program of the examples, which finds the agent on its `PATH`.
fn program(bench: &Bench, path: &str) -> Command {
    let folder = bench.home.folder();
    let programs = folder.join("programs");
    fs::create_dir_all(&programs).expect("a folder");
    let link = programs.join(known(bench.cell.agent).program);
    if !link.exists() {
        symlink(bench.home.launcher(), link).expect("a link");
    }
    let mut command = Command::new(path);
    let inherited = std::env::var("PATH").unwrap_or_default();
    command.env_clear().env("PATH", format!("{}:{inherited}", programs.display()));
    command.env("HOME", folder.join("home")).env("TMPDIR", folder.join("tmp")).current_dir(bench.project());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs a program with this input, and returns what it wrote to standard output and standard error.
async fn output(mut command: Command, input: &str) -> (String, String) {
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(input.as_bytes()).await.expect("it reads");
    drop(stdin);
    let output = in_time("the program", child.wait_with_output()).await.expect("its output");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out} {err}", output.status);
    (out, err)
}

pub(super) async fn the_chat_shows_what_the_agent_says(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let mut chat = program(&bench, env!("CARGO_BIN_EXE_chat"));
    chat.args(["--dir", &bench.project()]);
    match bench.is_released() {
        true => chat.args(["--agent", bench.agent_name()]).env("SANDBOX_AGENT_URL", bench.url()),
        false => chat.args(["--agent", cell.agent.name()]),
    };
    let (said, shown) = output(chat, "hello there\n").await;
    assert!(said.lines().any(|line| line == "echo: hello there"), "{said} {shown}");
    assert!(shown.contains("A new session with"), "{shown}");
    if !bench.is_released() {
        let (table, _) = output(program(&bench, env!("CARGO_BIN_EXE_list-agents")), "").await;
        let row = table.lines().find(|line| line.split(' ').next() == Some(cell.agent.name()));
        let row = row.unwrap_or_else(|| panic!("{table}"));
        assert!(row.contains(" yes ") && !row.contains("not installed"), "{table}");
    }
    Seen::Works
}
