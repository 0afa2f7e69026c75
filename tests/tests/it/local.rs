//! A server that this program starts on its own machine.

mod attacks;
mod successors;

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sandbox_agent_sdk::control::StartPhase;
use sandbox_agent_sdk::local::{LocalError, LocalLog, LocalOptions};
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
use sdk_tests::{LIMIT, eventually, install_agent, is_alive, within};
use tempfile::TempDir;

use crate::servers::{STUB, released};

/// The newest released server, the program under test.
const VERSION: &str = "0.4.2";
/// Long enough for a server to end in good order, short enough for a test that waits it out.
const GRACE: Duration = Duration::from_millis(500);

/// A data directory for a server, with an agent in it.
pub(crate) struct Home(TempDir);

impl Home {
    /// With the stub agent and these options of it.
    pub(crate) fn new(agent_options: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let command: Vec<String> =
            [STUB].iter().chain(agent_options).map(|word| (*word).to_owned()).collect();
        install_agent(home.path(), &command);
        Self(home)
    }

    /// With the stub agent, which has before it started this line.
    fn with_line(line: &str) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let line =
            format!("cd '{}'\n{line}\nexec '{STUB}' --ignore-eof --ignore-sigterm", home.path().display());
        install_agent(home.path(), &["/bin/sh".to_owned(), "-c".to_owned(), line]);
        Self(home)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn options(&self, binary: impl Into<PathBuf>) -> LocalOptions {
        SandboxAgentClient::start_local()
            .binary(binary)
            .directory(self.path())
            .env("HOME", self.path())
            .env("XDG_DATA_HOME", self.path())
            .stop_timeout(GRACE)
    }

    /// A program that is this shell script.
    pub(crate) fn script(&self, script: &str) -> PathBuf {
        let path = self.path().join("fake");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("a script that can be run");
        path
    }

    /// The process id that a script wrote down.
    async fn pid(&self) -> u32 {
        let file = self.path().join("pid");
        let read = || fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        eventually("the script to run", || read().is_some()).await;
        read().expect("a process id")
    }
}

/// Ways of an agent's tool to leave everything behind that it came from, and to write its process id down.
const STRAYS: [&str; 4] = [
    "timeout 1000 sh -c 'echo $$ > pid; exec sleep 1000' &",
    "setsid -f sh -c 'echo $$ > pid; exec sleep 1000' >/dev/null 2>&1",
    "env -i setsid -f sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 1000; done' </dev/null >/dev/null 2>&1",
    "setsid -f sh -c 'echo $$ > pid; kill -STOP $$; exec sleep 1000'",
];

/// The stub agent names its sessions after its process: `stub-PID-N`.
fn agent_of(session: &str) -> u32 {
    session.split('-').nth(1).and_then(|pid| pid.parse().ok()).expect("a session of the stub agent")
}

#[tokio::test]
async fn a_server_is_started_used_and_closed_with_its_agents() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let server = within("the start", home.options(&binary).agent("mock").start()).await.expect("a server");
    let session = within("a session", server.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    assert_eq!(within("a turn", session.prompt("say hello").text()).await.unwrap(), "hello");
    let (pid, agent) = (server.pid(), agent_of(session.id()));
    assert!(is_alive(pid) && is_alive(agent));
    assert_eq!((server.binary(), server.exit()), (binary.as_path(), None));
    assert!(server.output().iter().any(|line| line.contains("server listening")), "{:?}", server.output());
    let exit = within("closing", server.close()).await;
    assert_eq!(exit.signal, Some(15));
    assert!(!is_alive(pid) && !is_alive(agent));
    let error = within("a turn", session.prompt("say more").outcome()).await.unwrap_err();
    assert!(error.is_terminal(), "{error:?}");
}

#[tokio::test]
async fn the_token_is_random_and_required() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let server = within("the start", home.options(&binary).start()).await.expect("a server");
    assert_eq!(server.token().len(), 64);
    assert!(!format!("{server:?}").contains(server.token()));
    let other = SandboxAgentClient::builder(server.url()).token("wrong").auto_connect(false).build().unwrap();
    let error = within("a other", other.health().check()).await.unwrap_err();
    assert_eq!(StartPhase::of(&error), Some(StartPhase::Unauthorized));
    let another = Home::new(&[]);
    let second = within("the start", another.options(&binary).start()).await.expect("a second server");
    assert_ne!((server.token(), server.url()), (second.token(), second.url()));
    within("closing", server.close()).await;
    within("closing", second.close()).await;
}

#[tokio::test]
async fn stubborn_agents_are_killed_on_close() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&["--ignore-eof", "--ignore-sigterm"]);
    let server = within("the start", home.options(&binary).agent("mock").start()).await.expect("a server");
    let session = within("a session", server.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    let agent = agent_of(session.id());
    within("closing", server.close()).await;
    assert!(!is_alive(agent));
}

#[tokio::test]
async fn a_drop_ends_the_server_and_its_agents_too() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&["--ignore-eof", "--ignore-sigterm"]);
    let server = within("the start", home.options(&binary).agent("mock").start()).await.expect("a server");
    let session = within("a session", server.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    let (pid, agent) = (server.pid(), agent_of(session.id()));
    drop(server);
    eventually("the end of the server", || !is_alive(pid)).await;
    eventually("the end of the agent", || !is_alive(agent)).await;
}

#[test]
fn a_runtime_that_goes_first_ends_the_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let Some(binary) = runtime.block_on(released(VERSION)) else { return };
    let home = Home::new(&["--ignore-eof", "--ignore-sigterm"]);
    let server = runtime.block_on(home.options(&binary).agent("mock").start()).expect("a server");
    let session = runtime.block_on(server.client().new_session(NewSession::in_dir("/"))).unwrap();
    let (pid, agent) = (server.pid(), agent_of(session.id()));
    runtime.shutdown_timeout(LIMIT);
    let begun = Instant::now();
    while is_alive(pid) || is_alive(agent) {
        assert!(begun.elapsed() < LIMIT, "something is left");
        std::thread::yield_now();
    }
    drop(server);
}

#[tokio::test]
async fn a_server_that_exits_during_its_start_is_reported_with_its_output() {
    let home = Home::new(&[]);
    let script = home.script("echo listening; echo 'the data folder is broken' >&2; exit 3");
    let error = within("the start", home.options(script).start()).await.unwrap_err();
    let LocalError::Died { exit, output, .. } = &error else { panic!("{error:?}") };
    assert_eq!((exit.code, exit.signal), (Some(3), None));
    assert!(
        output.contains(&"listening".to_owned()) && output.contains(&"the data folder is broken".to_owned())
    );
    assert!(
        error.to_string().contains("exit code 3") && error.to_string().contains("data folder"),
        "{error}"
    );
    assert!(matches!(Error::from(error), Error::Local { .. }));
}

#[tokio::test]
async fn a_port_that_is_in_use_fails_the_start_at_once() {
    // The process that has it may be healthy, and is not taken for the server to start.
    let other = mock_server::MockServer::builder().start().await;
    let port = other.url().rsplit(':').next().unwrap().parse().unwrap();
    let home = Home::new(&[]);
    let script = home.script("exec sleep 1000");
    let error = within("the start", home.options(script).port(port).start()).await.unwrap_err();
    let LocalError::Machine { what: "port", source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn a_server_that_is_never_healthy_is_ended() {
    let home = Home::new(&[]);
    let script = home.script("echo $$ > pid; echo waiting; exec sleep 1000");
    let options = home.options(script).start_timeout(Duration::from_millis(700));
    let error = within("the start", options.start()).await.unwrap_err();
    let LocalError::NotHealthy { waited, output, source, .. } = &error else { panic!("{error:?}") };
    assert!(*waited >= Duration::from_millis(700));
    assert_eq!(
        (output.as_slice(), StartPhase::of(source)),
        (["waiting".to_owned()].as_slice(), Some(StartPhase::Unreachable))
    );
    assert!(!is_alive(home.pid().await));
}

#[tokio::test]
async fn a_server_that_ignores_sigterm_is_killed() {
    let home = Home::new(&[]);
    let script = home.script("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
    let options = home.options(script).start_timeout(Duration::from_millis(300));
    let error = within("the start", options.start()).await.unwrap_err();
    assert!(matches!(error, LocalError::NotHealthy { .. }), "{error:?}");
    assert!(!is_alive(home.pid().await));
}

#[tokio::test]
async fn a_cancelled_start_ends_the_server() {
    let home = Home::new(&[]);
    let script = home.script("echo $$ > pid; exec sleep 1000");
    let start = home.options(script).start();
    let pid = tokio::select! {
        outcome = start => panic!("{outcome:?}"),
        pid = home.pid() => pid,
    };
    eventually("the end of the server", || !is_alive(pid)).await;
}

#[tokio::test]
async fn a_server_that_floods_its_log_neither_blocks_nor_fills_memory() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let script = home.script(&format!("yes 'a line of a flood' & exec '{}' \"$@\"", binary.display()));
    let server = within("the start", home.options(script).agent("mock").start()).await.expect("a server");
    let session = within("a session", server.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    assert_eq!(within("a turn", session.prompt("say calm").text()).await.unwrap(), "calm");
    eventually("a full log", || server.output().len() == 256).await;
    within("closing", server.close()).await;
}

#[tokio::test]
async fn a_server_that_exits_later_is_reported_and_its_agents_end() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let server = within("the start", home.options(&binary).agent("mock").start()).await.expect("a server");
    let session = within("a session", server.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    let agent = agent_of(session.id());
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(server.pid().try_into().unwrap()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    assert_eq!(within("the end", server.ended()).await.signal, Some(9));
    assert_eq!(server.exit().unwrap().signal, Some(9));
    assert!(!is_alive(agent), "its agents went with it");
}

#[tokio::test]
async fn a_program_that_does_not_exist_or_cannot_run_is_a_typed_error() {
    let error = SandboxAgentClient::start_local().binary("/nowhere/sandbox-agent").start().await.unwrap_err();
    let LocalError::NotFound { searched, .. } = &error else { panic!("{error:?}") };
    assert_eq!(searched.as_slice(), ["/nowhere/sandbox-agent (from the options)"]);
    let home = Home::new(&[]);
    let text = home.path().join("text");
    fs::write(&text, "#!/nowhere/interpreter\n").unwrap();
    let error = home.options(&text).start().await.unwrap_err();
    assert!(matches!(error, LocalError::NotExecutable { .. }), "{error:?}");
    fs::set_permissions(&text, Permissions::from_mode(0o755)).unwrap();
    let error = home.options(text).start().await.unwrap_err();
    assert!(matches!(error, LocalError::Spawn { .. }), "{error:?}");
}

#[tokio::test]
async fn processes_of_an_agent_end_with_the_server_in_whatever_session_or_group() {
    let Some(binary) = released(VERSION).await else { return };
    for (number, line) in STRAYS.iter().enumerate() {
        let home = Home::with_line(line);
        let server =
            within("the start", home.options(&binary).agent("mock").start()).await.expect("a server");
        let made = server.client().new_session(NewSession::in_dir("/"));
        let agent = agent_of(within("a session", made).await.unwrap().id());
        let stray = home.pid().await;
        assert!(is_alive(stray) && is_alive(agent));
        if number % 2 == 0 {
            within("closing", server.close()).await;
            assert!(!is_alive(stray) && !is_alive(agent), "{line}");
        } else {
            drop(server);
            eventually("the end of what was started", || !is_alive(stray) && !is_alive(agent)).await;
        }
    }
}

#[tokio::test]
async fn a_server_that_is_killed_leaves_no_process_of_its_agents() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::with_line(STRAYS[2]);
    let server = within("the start", home.options(&binary).agent("mock").start()).await.expect("a server");
    within("a session", server.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    let stray = home.pid().await;
    let pid = nix::unistd::Pid::from_raw(server.pid().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(within("the end", server.ended()).await.signal, Some(9));
    assert!(!is_alive(stray));
}

#[test]
fn a_runtime_that_goes_first_ends_the_whole_process_tree() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let home = Home::new(&[]);
    let script = home.script(&format!("{}\nexec sleep 1000", STRAYS[1]));
    let mut start = home.options(script).start();
    let stray = runtime.block_on(async {
        tokio::select! {
            outcome = &mut start => panic!("{outcome:?}"),
            pid = home.pid() => pid,
        }
    });
    assert!(is_alive(stray));
    // The start is neither cancelled nor can it continue.
    runtime.shutdown_timeout(LIMIT);
    assert!(!is_alive(stray));
    drop(start);
}

#[tokio::test]
async fn a_cancelled_start_leaves_no_process_of_the_tree() {
    for line in STRAYS {
        let home = Home::new(&[]);
        // A process that leaves before its tree was recorded is not found.
        let wait = "while [ ! -e go ]; do sleep 0.01; done";
        let script = home.script(&format!("{wait}\n{line}\nexec sleep 1000"));
        let start = home.options(script).start();
        let stray = tokio::select! {
            biased;
            outcome = start => panic!("{outcome:?}"),
            pid = async {
                // The first poll of the start has recorded the tree.
                fs::write(home.path().join("go"), "").unwrap();
                home.pid().await
            } => pid,
        };
        eventually("the end of what was started", || !is_alive(stray)).await;
    }
}

#[tokio::test]
async fn a_server_that_exits_during_its_start_leaves_no_process_of_its_tree() {
    let home = Home::new(&[]);
    let wait = "while [ ! -s pid ]; do sleep 0.01; done";
    let script = home.script(&format!("{}\n{wait}; echo bye; exit 4", STRAYS[3]));
    let error = within("the start", home.options(script).start()).await.unwrap_err();
    let LocalError::Died { exit, output, .. } = &error else { panic!("{error:?}") };
    assert_eq!((exit.code, output.as_slice()), (Some(4), ["bye".to_owned()].as_slice()));
    assert!(!is_alive(home.pid().await));
}

/// This test runs itself, as its own standard error cannot be read.
#[test]
fn a_forwarded_log_is_written_to_standard_error_and_retained() {
    const INNER: &str = "SDK_TESTS_FORWARDED_LOG";
    let home = Home::new(&[]);
    if std::env::var_os(INNER).is_some() {
        let script = home.script("echo said on one; echo said on the other >&2; exit 3");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let start = home.options(script).log(LocalLog::Forward).start();
        let error = runtime.block_on(within("the start", start)).unwrap_err();
        assert_eq!(error.output().len(), 2, "{error}");
        return;
    }
    let itself = std::env::current_exe().expect("a test has a program");
    let name = "local::a_forwarded_log_is_written_to_standard_error_and_retained";
    let mut command = std::process::Command::new(itself);
    let output = command.args(["--exact", name, "--nocapture"]).env(INNER, "1").output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("said on one\n") && stderr.contains("said on the other\n"), "{stderr}");
}
