//! Terminals over WebSockets.

use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::control::processes::{CreateProcess, LossyText, ProcessExit};
use sandbox_agent_sdk::control::terminal::{ProcessTerminal, TerminalEvent, TerminalSize};
use sdk_tests::within;

use super::{Kind, Server};

/// Reads until the terminal has printed a text. Returns its output.
async fn see(terminal: &mut ProcessTerminal, text: &str) -> String {
    let (mut seen, mut decoder) = (String::new(), LossyText::new());
    let seeing = async {
        while !seen.contains(text) {
            match terminal.next().await {
                Some(TerminalEvent::Data(bytes)) => seen.push_str(&decoder.push(&bytes)),
                other => panic!("{other:?} before {text:?}, after {seen:?}"),
            }
        }
    };
    within(text, seeing).await;
    seen
}

/// Reads to the end.
async fn to_the_end(terminal: &mut ProcessTerminal) -> (String, ProcessExit) {
    let (mut seen, mut decoder) = (String::new(), LossyText::new());
    let ending = async {
        loop {
            match terminal.next().await {
                Some(TerminalEvent::Data(bytes)) => seen.push_str(&decoder.push(&bytes)),
                Some(TerminalEvent::Exit(exit)) => return exit,
                other => panic!("{other:?} after {seen:?}"),
            }
        }
    };
    let exit = within("the end of the terminal", ending).await;
    assert!(terminal.next().await.is_none());
    (seen, exit)
}

fn shell() -> CreateProcess {
    CreateProcess::new("sh").env("PS1", "ready> ").tty(true)
}

pub(super) async fn a_terminal_has_a_size_input_output_and_an_exit_code(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes.create(shell()).await.expect("a shell").id;
    let mut terminal = processes.connect_terminal(&id).await.expect("a terminal");
    assert_eq!(terminal.process_id(), id);
    terminal.send_input("stty size\n").await.expect("input");
    see(&mut terminal, "24 80").await;
    terminal.resize(TerminalSize::new(120, 40)).await.expect("a size");
    terminal.send_input("stty size\n").await.expect("input");
    see(&mut terminal, "40 120").await;
    let size = processes.resize_terminal(&id, TerminalSize::new(100, 30)).await.expect("a size");
    assert_eq!(size, TerminalSize::new(100, 30));
    terminal.send_input("stty size\n").await.expect("input");
    see(&mut terminal, "30 100").await;
    terminal.send_input("printf '\\033[31m%s\\033[0m\\n' 日本; exit 5\n").await.expect("input");
    let (seen, exit) = to_the_end(&mut terminal).await;
    assert!(seen.contains("\u{1b}[31m日本\u{1b}[0m\r\n"), "{seen:?}");
    assert!(!seen.contains("stream error"), "{seen:?}");
    assert_eq!(exit, ProcessExit::Code(5));
}

pub(super) async fn several_clients_share_a_terminal_and_may_leave_it(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes.create(shell()).await.expect("a shell").id;
    let mut first = processes.connect_terminal(&id).await.expect("a terminal");
    let mut second = processes.connect_terminal(&id).await.expect("a terminal");
    first.send_input("echo from-$((40+2))\n").await.expect("input");
    see(&mut first, "from-42").await;
    see(&mut second, "from-42").await;
    first.close().await;
    drop(second);
    assert!(processes.get(&id).await.expect("the shell").is_running(), "it survives its clients");
    let (mut input, mut output) = processes.connect_terminal(&id).await.expect("a terminal").split();
    input.send_input("kill -9 $$\n").await.expect("input");
    let end = async {
        while let Some(event) = output.next().await {
            if let TerminalEvent::Exit(exit) = event {
                return Some(exit);
            }
        }
        None
    };
    assert_eq!(within("the end", end).await, Some(ProcessExit::Signal));
}

pub(super) async fn a_terminal_of_an_exited_process_ends_at_once(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes
        .create(CreateProcess::new("sh").args(["-c", "exit 9"]).tty(true))
        .await
        .expect("a shell")
        .id;
    let exited = async {
        while processes.get(&id).await.expect("the shell").is_running() {
            tokio::task::yield_now().await;
        }
    };
    within("its exit", exited).await;
    let mut terminal = processes.connect_terminal(&id).await.expect("a terminal");
    assert_eq!(to_the_end(&mut terminal).await, (String::new(), ProcessExit::Code(9)));
}

pub(super) async fn a_process_without_a_terminal_is_refused_as_such(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes.create(CreateProcess::new("cat")).await.expect("a process").id;
    let error = processes.connect_terminal(&id).await.expect_err("it has no terminal");
    assert!(matches!(&error, Error::Http(http) if http.status == 409), "{error:?}");
    let error =
        processes.resize_terminal(&id, TerminalSize::new(80, 24)).await.expect_err("it has no terminal");
    assert!(matches!(&error, Error::Http(http) if http.status == 409), "{error:?}");
}

pub(super) async fn a_wrong_token_is_refused_by_a_terminal(kind: Kind) {
    let Some(server) = Server::with_token(kind, Some("right")).await else { return };
    let processes = server.plane().processes();
    let id = processes.create(shell()).await.expect("a shell").id;
    let wrong = ControlPlane::builder(server.url()).token("wrong").build().expect("a control plane");
    let error = wrong.processes().connect_terminal(&id).await.expect_err("a wrong token");
    assert!(error.is_unauthorized(), "{error:?}");
    processes.connect_terminal(&id).await.expect("the right token").close().await;
}
