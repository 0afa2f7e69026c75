//! Attacks on the start of a local server, by other users of the machine and by the directory it is started in.

use std::{
    fs::{self, Permissions},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sandbox_agent_sdk::control::StartPhase;
use sandbox_agent_sdk::local::{LocalError, LocalLog, PathProblem};
use sandbox_agent_sdk::{NewSession, SandboxAgentClient};
use sdk_tests::{eventually, within};

use super::{Home, VERSION};
use crate::servers::released;

/// Tells a test that it runs in the process that it started itself.
const INNER: &str = "SDK_TESTS_INNER";
/// A script that writes its port down and never listens.
const SILENT: &str = "echo $6 > port.new; mv port.new port; exec sleep 1000";
/// A healthy response with the connection closed behind it.
const HEALTHY: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\nconnection: close\r\n\r\n{\"status\":\"ok\"}";

fn is_inner() -> bool {
    std::env::var_os(INNER).is_some()
}

/// Runs one test of this file in a separate process, whose environment and working directory can be chosen.
fn run_inner(test: &str, setup: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test has a program"));
    command.args(["--exact", &format!("local::attacks::{test}"), "--nocapture"]).env(INNER, "1");
    setup(&mut command);
    let output = command.output().expect("the test runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A process that listens where it should not: it answers that it is healthy, and records what it is sent.
#[derive(Clone, Default)]
pub(super) struct Rival {
    received: Arc<Mutex<Vec<u8>>>,
    stopped: Arc<AtomicBool>,
    addresses: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Rival {
    /// Serves a listener until the test ends, or until `stop`.
    pub(super) fn serve(&self, listener: TcpListener) {
        let Self { received, stopped, addresses } = self.clone();
        addresses.lock().unwrap().push(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let received = Arc::clone(&received);
                std::thread::spawn(move || {
                    let mut piece = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut piece) {
                        received.lock().unwrap().extend_from_slice(&piece[..count]);
                        let _ = stream.write_all(HEALTHY);
                    }
                });
            }
        });
    }

    /// Closes the listeners: a connection wakes the thread that accepts.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        for address in self.addresses.lock().unwrap().iter() {
            drop(TcpStream::connect(address));
        }
    }

    pub(super) fn received(&self) -> String {
        String::from_utf8_lossy(&self.received.lock().unwrap()).into_owned()
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn program(path: &Path, mode: u32, line: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_output_of_a_server_does_nothing_to_the_terminal() {
    if is_inner() {
        return block_on(async {
            let home = Home::new(&[]);
            // A title, a cleared screen and a line that overwrites itself.
            let script = home.script(r"printf '\033]0;title\007\033[2Jhidden\rshown\n' >&2; exit 3");
            let options = home.options(script).log(LocalLog::Forward);
            let error = within("the start", options.start()).await.unwrap_err();
            let LocalError::Died { output, .. } = &error else { panic!("{error:?}") };
            assert!(
                output.iter().any(|line| line.contains("\u{1b}[2J")),
                "the raw text is there: {output:?}"
            );
            eprintln!("error: {error}");
        });
    }
    let output = run_inner("the_output_of_a_server_does_nothing_to_the_terminal", |_| {});
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(shown.contains("error: ") && shown.matches("title").count() >= 2, "{shown:?}");
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
}

#[test]
fn a_program_planted_in_node_modules_is_neither_started_nor_made_executable() {
    if is_inner() {
        let error = block_on(SandboxAgentClient::start_local().start()).unwrap_err();
        assert!(matches!(error, LocalError::NotFound { .. }), "{error:?}");
        let error = block_on(SandboxAgentClient::start_local().search_node_modules(".").start()).unwrap_err();
        assert!(matches!(error, LocalError::NotExecutable { .. }), "{error:?}");
        return;
    }
    // A repository that was cloned, with a program that steals the environment.
    let repository = tempfile::tempdir().unwrap();
    let stolen = repository.path().join("stolen");
    let packages = ["linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"].map(|platform| {
        repository.path().join(format!("node_modules/@sandbox-agent/cli-{platform}/bin/sandbox-agent"))
    });
    for package in &packages {
        program(package, 0o644, &format!("env > {}; exit 1", stolen.display()));
    }
    let inside = repository.path().join("src/deep");
    fs::create_dir_all(&inside).unwrap();
    run_inner("a_program_planted_in_node_modules_is_neither_started_nor_made_executable", |command| {
        command
            .current_dir(&inside)
            .env_remove("SANDBOX_AGENT_BIN")
            .env("PATH", "/nowhere")
            .env("API_KEY", "hush");
    });
    assert!(!stolen.exists(), "it was started: {:?}", fs::read_to_string(&stolen));
    for package in &packages {
        assert_eq!(package.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }
}

#[tokio::test]
async fn a_program_that_other_users_can_replace_is_not_started() {
    let home = Home::new(&[]);
    let ran = home.path().join("ran");
    let line = format!("touch {}; exit 1", ran.display());
    let (open, file) = (home.path().join("open"), home.path().join("safe/file"));
    program(&open.join("program"), 0o755, &line);
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    program(&file, 0o757, &line);
    std::os::unix::fs::symlink(&file, home.path().join("link")).unwrap();
    for (binary, culprit) in
        [(open.join("program"), &open), (file.clone(), &file), (home.path().join("link"), &file)]
    {
        let error = within("the start", home.options(&binary).start()).await.unwrap_err();
        let LocalError::Untrusted { entry, problem, .. } = &error else { panic!("{error:?}") };
        assert_eq!(entry.canonicalize().unwrap(), culprit.canonicalize().unwrap());
        assert!(matches!(problem, PathProblem::WritableByOthers { .. }), "{problem:?}");
    }
    assert!(!ran.exists());
    let error = within("the start", home.options(file).accept_untrusted_binary().start()).await.unwrap_err();
    assert!(matches!(error, LocalError::Died { .. }) && ran.exists(), "{error:?}");
}

#[tokio::test]
async fn a_server_gets_only_the_variables_that_are_named() {
    // The test runner sets these.
    let secrets = ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"];
    assert!(secrets.iter().all(|name| std::env::var_os(name).is_some()));
    let home = Home::new(&[]);
    let script = home.script("env > variables; exit 3");
    let has = async |change: fn(
        sandbox_agent_sdk::local::LocalOptions,
    ) -> sandbox_agent_sdk::local::LocalOptions| {
        let error = within("the start", change(home.options(&script)).start()).await.unwrap_err();
        assert!(matches!(error, LocalError::Died { .. }), "{error:?}");
        let variables = fs::read_to_string(home.path().join("variables")).unwrap();
        assert!(variables.contains("\nPATH=") || variables.starts_with("PATH="), "{variables}");
        assert!(variables.contains(&format!("HOME={}", home.path().display())), "{variables}");
        secrets.map(|name| variables.lines().any(|line| line.starts_with(&format!("{name}="))))
    };
    assert_eq!(has(|options| options).await, [false, false]);
    assert_eq!(has(|options| options.inherit(["CARGO_MANIFEST_DIR"])).await, [true, false]);
    assert_eq!(has(|options| options.inherit_everything()).await, [true, true]);
}

#[tokio::test]
async fn another_process_that_takes_the_port_first_gets_nothing() {
    let home = Home::new(&[]);
    let script = home.script(SILENT);
    let file = home.path().join("port");
    let rival = Rival::default();
    let thief = {
        let (rival, file) = (rival.clone(), file.clone());
        async move {
            let mut taken = Vec::new();
            // As fast as it learns of the port, over and over.
            loop {
                let port = fs::read_to_string(&file).ok().and_then(|port| port.trim().parse::<u16>().ok());
                if let Some(port) = port.filter(|port| !taken.contains(port)) {
                    taken.push(port);
                    rival.serve(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let attack = async {
        let port = free_port();
        let start = home.options(&script).port(port).token("hush").start();
        let error = within("the start", start).await.unwrap_err();
        assert!(
            matches!(error, LocalError::ForeignListener { port: taken, .. } if taken == port),
            "{error:?}"
        );
        assert_eq!(rival.received(), "");
        fs::remove_file(&file).unwrap();
        let error = within("the start", home.options(&script).token("hush").start()).await.unwrap_err();
        assert!(matches!(error, LocalError::ForeignListener { .. }), "{error:?}");
        assert_eq!(rival.received(), "");
    };
    tokio::select! {
        () = attack => {}
        () = thief => {}
    }
}

#[tokio::test]
async fn a_server_behind_a_wrapper_script_is_recognised() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let script = home.script(&format!("setsid '{}' \"$@\" & wait", binary.display()));
    let server = within("the start", home.options(script).agent("mock").start()).await.expect("a server");
    let session = within("a session", server.client().new_session(NewSession::in_dir("/"))).await.unwrap();
    assert_eq!(within("a turn", session.prompt("say hello").text()).await.unwrap(), "hello");
    within("closing", server.close()).await;
}

#[test]
fn a_proxy_of_the_environment_sees_nothing_that_goes_to_the_loopback_interface() {
    if is_inner() {
        block_on(async {
            let mock = mock_server::MockServer::builder().token("hush").start().await;
            let client = SandboxAgentClient::builder(mock.url()).token("hush").auto_connect(false);
            within("a health check", client.build().unwrap().health().check()).await.unwrap();
            let control =
                sandbox_agent_sdk::control::ControlPlane::builder(mock.url()).token("hush").build().unwrap();
            within("a health check", control.health().check()).await.unwrap();
            let server = sdk_tests::acp_server(|_| Vec::new()).token("hush").start().await;
            let client = sdk_tests::client(&server).token("hush").build().unwrap();
            within("a session", sdk_tests::session(&client)).await;
            if let Some(binary) = released(VERSION).await {
                let home = Home::new(&[]);
                let server =
                    within("the start", home.options(binary).token("hush").agent("mock").start()).await;
                let server = server.expect("a server");
                let made = server.client().new_session(NewSession::in_dir("/"));
                let session = within("a session", made).await.unwrap();
                assert_eq!(within("a turn", session.prompt("say hello").text()).await.unwrap(), "hello");
                within("closing", server.close()).await;
            }
        });
        return;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let proxy = Rival::default();
    proxy.serve(listener);
    run_inner("a_proxy_of_the_environment_sees_nothing_that_goes_to_the_loopback_interface", |command| {
        for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
            command.env(name, &address);
        }
        command.env_remove("NO_PROXY").env_remove("no_proxy");
    });
    assert_eq!(proxy.received(), "");
}

#[tokio::test]
async fn a_start_that_never_listens_ends_with_its_timeout_and_sends_no_token() {
    let home = Home::new(&[]);
    let script = home.script(SILENT);
    let options = home.options(script).start_timeout(Duration::from_millis(300));
    let error = within("the start", options.start()).await.unwrap_err();
    let LocalError::NotHealthy { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(StartPhase::of(source), Some(StartPhase::Unreachable));
}

/// Listens on a port and prints every line that it gets, in Perl, which other users can run too.
const LISTENER: &str = "use IO::Socket::INET; $| = 1; \
    $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 5, ReuseAddr => 1) or die; \
    while ($c = $s->accept) { while (<$c>) { print; last if /^\\r?$/ } print $c qq(HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n); close $c }";

/// Whether this test can start processes of another user. Says why not.
fn can_be_another_user() -> bool {
    let has = |program: &str| {
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if is_root && ["setpriv", "prlimit", "perl"].into_iter().all(has) {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "this test needs root, setpriv, prlimit and perl");
    sdk_tests::say_not_run("it takes the superuser, setpriv, prlimit and perl");
    false
}

/// The option of `prlimit` that sets the limit by which the process tree of this server is recognised. Every user can
/// read it.
async fn limit_of(pid: u32) -> String {
    let mark = || {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime timeout"))?.to_owned();
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    eventually("the mark", || mark().is_some()).await;
    format!("--rttime={0}:{0}", mark().unwrap())
}

#[tokio::test]
async fn a_process_of_another_user_with_the_marks_of_the_server_gets_nothing() {
    if !can_be_another_user() {
        return;
    }
    let home = Home::new(&[]);
    let script = home.script("echo $$ > pid; exec sleep 1000");
    let port = free_port();
    let attack = async {
        let limit = limit_of(home.pid().await).await;
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", &limit])
            .args(["perl", "-e", LISTENER, &port.to_string()])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let start = home.options(&script).port(port).token("hush").start();
    let (error, mut rival) = tokio::join!(within("the start", start), attack);
    rival.kill().unwrap();
    let received = rival.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&received), "");
    let error = error.unwrap_err();
    assert!(matches!(error, LocalError::ForeignListener { .. }), "{error:?}");
}

#[tokio::test]
async fn a_process_of_another_user_with_the_mark_of_the_server_is_not_killed_with_it() {
    if !can_be_another_user() {
        return;
    }
    let home = Home::new(&[]);
    let script = home.script("echo $$ > pid; while [ ! -e end ]; do sleep 0.01; done; exit 3");
    let attack = async {
        let limit = limit_of(home.pid().await).await;
        let mut rival = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", &limit])
            .args(["sh", "-c", "echo marked; exec sleep 1000"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        rival.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        fs::write(home.path().join("end"), "").unwrap();
        rival
    };
    // The start fails when the server and its process tree have ended.
    let (outcome, mut rival) = tokio::join!(within("the start", home.options(&script).start()), attack);
    let end = rival.try_wait().unwrap();
    rival.kill().unwrap();
    rival.wait().unwrap();
    assert!(matches!(outcome, Err(LocalError::Died { .. })), "{outcome:?}");
    assert_eq!(end, None, "a process of another user was killed");
}
