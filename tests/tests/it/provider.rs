//! Sandboxes of providers: on this machine, in bubblewrap, and in containers of a recorded engine.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::SandboxAgentClient;
use sandbox_agent_sdk::control::processes::{CreateProcess, RunOutput, RunProcess};
use sandbox_agent_sdk::control::terminal::TerminalEvent;
use sandbox_agent_sdk::provider::{
    BubblewrapProvider, ContainerProvider, LocalProvider, ProviderError, Sandbox, SandboxProvider,
};
use sdk_tests::{eventually, say_not_run, within};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::servers::released;

const VERSION: &str = "0.4.2";

#[tokio::test]
async fn a_local_server_is_started_attached_to_and_destroyed() {
    let Some(program) = released(VERSION).await else { return };
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_owned();
    let provider: Arc<dyn SandboxProvider> = Arc::new(LocalProvider::with_options(move || {
        SandboxAgentClient::start_local().binary(&program).env("XDG_DATA_HOME", &data).env("HOME", &data)
    }));
    let start = SandboxAgentClient::with_shared_provider(Arc::clone(&provider)).start();
    let sandbox = within("starting", start).await.unwrap();
    let id = sandbox.id();
    assert!(id.starts_with("local/"), "{id}");
    let attach = SandboxAgentClient::with_shared_provider(Arc::clone(&provider)).sandbox_id(&id).start();
    let attached = within("attaching", attach).await.unwrap();
    assert_eq!(run(&attached, "echo here").await.stdout, "here\n");
    let error = attached.pause().await.unwrap_err();
    assert!(matches!(error, ProviderError::Unsupported("pause")), "{error:?}");
    within("destroying", sandbox.destroy()).await.unwrap();
    let attach = SandboxAgentClient::with_shared_provider(Arc::clone(&provider)).sandbox_id(&id).start();
    let error = attach.await.unwrap_err();
    assert!(matches!(error, ProviderError::NotFound(_)), "{error:?}");
    let other =
        SandboxAgentClient::with_shared_provider(provider).sandbox_id("docker/x").start().await.unwrap_err();
    assert!(matches!(other, ProviderError::WrongProvider { .. }), "{other:?}");
}

async fn run(sandbox: &Sandbox, script: &str) -> RunOutput {
    let command = RunProcess::new("sh").args(["-c", script]).timeout(Duration::from_secs(15));
    within(script, sandbox.client().processes().run(command)).await.unwrap()
}

/// Folders of a test with a bubblewrap sandbox; `None`, with a word about it, where this machine cannot have one.
struct Folders {
    outside: TempDir,
    homes: TempDir,
}

/// Whether this machine can have a bubblewrap sandbox. Says why not.
pub(crate) fn has_bubblewrap() -> bool {
    let works =
        std::process::Command::new("bwrap").args(["--ro-bind", "/", "/", "--unshare-user", "true"]).output();
    if works.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let why = "bubblewrap is not installed, or may not make sandboxes";
    assert!(std::env::var_os("CI").is_none(), "{why}");
    say_not_run(why);
    false
}

async fn bubblewrap() -> Option<(Sandbox, Folders)> {
    if !has_bubblewrap() {
        return None;
    }
    let program = released(VERSION).await?;
    let folders = Folders { outside: tempfile::tempdir().unwrap(), homes: tempfile::tempdir().unwrap() };
    let outside = folders.outside.path();
    for name in ["shown", "work", "it's hidden"] {
        fs::create_dir(outside.join(name)).unwrap();
        fs::write(outside.join(name).join("file"), name).unwrap();
    }
    let provider = BubblewrapProvider::new(program, folders.homes.path())
        .read_only(outside.join("shown"), "/shown")
        .writable(outside.join("work"), "/work")
        .env("GREETING", "it's \"me\"");
    let sandbox = within("starting", SandboxAgentClient::with_provider(provider).start()).await.unwrap();
    Some((sandbox, folders))
}

#[tokio::test]
async fn a_bubblewrap_sandbox_shows_what_it_was_given_and_nothing_else() {
    let Some((sandbox, folders)) = bubblewrap().await else { return };
    assert_eq!(
        run(&sandbox, "cat /shown/file /work/file; printf %s \"$GREETING\"").await.stdout,
        "shownworkit's \"me\""
    );
    assert_eq!(run(&sandbox, "pwd; echo $HOME").await.stdout, "/home/sandbox\n/home/sandbox\n");
    run(&sandbox, "echo changed > /work/file; echo mine > $HOME/kept; echo mine > /tmp/kept").await;
    let outside = folders.outside.path();
    assert_eq!(fs::read_to_string(outside.join("work/file")).unwrap(), "changed\n");
    assert!(!Path::new("/tmp/kept").exists() && !Path::new("/home/sandbox/kept").exists());

    let secret = outside.join("it's hidden/file");
    let secret = secret.display();
    // Each of these would reach what is outside, if it worked.
    let escapes = [
        format!("cat \"{secret}\""),
        format!("cat \"/proc/1/root{secret}\""),
        format!("cat \"/proc/self/root{secret}\""),
        format!("ln -s \"{secret}\" /work/link; cat /work/link"),
        "cat \"/work/../it's hidden/file\" \"/shown/../it's hidden/file\"".to_owned(),
        "echo x > /shown/file".to_owned(),
        "echo x > /shown/new".to_owned(),
        "echo x > /usr/bin/new".to_owned(),
        "echo x > /run/sandbox-agent".to_owned(),
        "mount -o remount,rw /usr".to_owned(),
        "mount --bind / /tmp".to_owned(),
        "mknod /tmp/disk b 8 0".to_owned(),
        "cat /etc/shadow".to_owned(),
        "ls /root /var /boot /sys".to_owned(),
    ];
    for escape in &escapes {
        let output = run(&sandbox, escape).await;
        assert!(!output.is_success(), "{escape} worked: {output:?}");
        assert!(!output.stdout.contains("hidden"), "{escape}: {output:?}");
    }
    assert_eq!(fs::read_to_string(outside.join("shown/file")).unwrap(), "shown");
    assert!(!outside.join("shown/new").exists());
    within("destroying", sandbox.destroy()).await.unwrap();
}

#[tokio::test]
async fn a_bubblewrap_sandbox_has_its_own_processes_and_environment_and_ends_with_them() {
    let Some((sandbox, folders)) = bubblewrap().await else { return };
    // This program and its environment are to be seen outside, and not inside.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let environment = run(&sandbox, "env; cat /proc/*/environ").await.stdout;
    assert!(environment.contains("GREETING") && !environment.contains("CARGO_MANIFEST_DIR"), "{environment}");
    let own = std::process::id();
    let seen = run(
        &sandbox,
        &format!("ls -d /proc/[0-9]* | wc -l; cat /proc/*/cmdline | tr '\\0' ' '; kill -9 {own}"),
    )
    .await;
    let count: usize = seen.stdout.lines().next().unwrap().trim().parse().unwrap();
    assert!(count < 12, "{}", seen.stdout);
    let program = std::env::current_exe().unwrap();
    assert!(!seen.stdout.contains(program.file_name().unwrap().to_str().unwrap()), "{}", seen.stdout);

    // A process that leaves its session and its parent is still in the sandbox.
    let marked = "987654.25";
    run(&sandbox, &format!("setsid sh -c 'sleep {marked} & exit' > /dev/null 2>&1")).await;
    sandbox.client().processes().create(CreateProcess::new("sleep").args([marked])).await.unwrap();
    let running = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
        lines.filter(|line| *line == format!("sleep\0{marked}\0").into_bytes()).count()
    };
    eventually("both processes", || running() == 2).await;
    assert_eq!(fs::read_dir(folders.homes.path()).unwrap().count(), 1);
    within("destroying", sandbox.destroy()).await.unwrap();
    eventually("the end of the processes", || running() == 0).await;
    assert_eq!(fs::read_dir(folders.homes.path()).unwrap().count(), 0, "its home is deleted");
}

#[tokio::test]
async fn a_bubblewrap_sandbox_has_this_machines_network_or_none() {
    let Some((shared, folders)) = bubblewrap().await else { return };
    let outside = MockServer::start().await;
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{} && printf 'GET /v1/health HTTP/1.1\\r\\nhost: h\\r\\nconnection: close\\r\\n\\r\\n' >&3 && cat <&3",
        outside.address().port()
    );
    let reach = async |sandbox: &Sandbox| {
        let command = RunProcess::new("bash").args(["-c", &script]).timeout(Duration::from_secs(10));
        within("reaching out", sandbox.client().processes().run(command)).await.unwrap()
    };
    assert!(reach(&shared).await.stdout.contains("200 OK"));
    let program = released(VERSION).await.unwrap();
    let provider = BubblewrapProvider::new(program, folders.homes.path()).without_network();
    let alone = within("starting", SandboxAgentClient::with_provider(provider).start()).await.unwrap();
    let output = reach(&alone).await;
    assert!(!output.is_success() && output.stdout.is_empty(), "{output:?}");
    let interfaces = run(&alone, "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '").await.stdout;
    assert_eq!(interfaces, "lo\n");
    // Files, several requests at once, and a terminal pass the way in.
    let bytes = vec![7; 1_500_000];
    alone.client().files().write("large", bytes.clone()).await.unwrap();
    let (first, second) = tokio::join!(alone.client().files().read("large"), run(&alone, "echo second"));
    assert!(first.unwrap() == bytes && second.stdout == "second\n");
    let processes = alone.client().processes();
    let id =
        processes.create(CreateProcess::new("sh").args(["-c", "read x; exit 6"]).tty(true)).await.unwrap().id;
    let mut terminal = processes.connect_terminal(&id).await.unwrap();
    terminal.send_input("\n").await.unwrap();
    let end = async {
        while let Some(event) = terminal.next().await {
            if let TerminalEvent::Exit(exit) = event {
                return exit.code();
            }
        }
        None
    };
    assert_eq!(within("the end of the terminal", end).await, Some(6));
    within("destroying", alone.destroy()).await.unwrap();
    within("destroying", shared.destroy()).await.unwrap();
}

#[tokio::test]
async fn the_port_of_a_sandbox_without_a_network_is_closed_when_its_server_ends() {
    let Some((shared, folders)) = bubblewrap().await else { return };
    within("destroying", shared.destroy()).await.unwrap();
    let program = released(VERSION).await.unwrap();
    let provider = BubblewrapProvider::new(program, folders.homes.path()).without_network();
    let id = within("starting", provider.start()).await.unwrap();
    let url = provider.endpoint(&id).await.unwrap().url;
    let address = url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    let listens = || std::net::TcpStream::connect(&address).is_ok();
    assert!(listens());
    assert!(std::process::Command::new("kill").args(["-9", &id]).status().unwrap().success());
    eventually("the end of the relay", || !listens()).await;
    within("destroying", provider.destroy(&id)).await.unwrap();
}

/// A sandbox without a network, and the address of its relay.
async fn relayed(folders: &Folders) -> (Sandbox, String) {
    let program = released(VERSION).await.unwrap();
    let provider = BubblewrapProvider::new(program, folders.homes.path()).without_network();
    let sandbox = within("starting", SandboxAgentClient::with_provider(provider).start()).await.unwrap();
    let id = sandbox.id();
    let url = sandbox.provider().endpoint(id.split_once('/').unwrap().1).await.unwrap().url;
    (sandbox, url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned())
}

#[tokio::test]
async fn many_open_connections_do_not_block_a_sandbox_without_a_network() {
    let Some((shared, folders)) = bubblewrap().await else { return };
    within("destroying", shared.destroy()).await.unwrap();
    let (sandbox, address) = relayed(&folders).await;
    let open: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
    connection.write_all(b"GET /v1/health HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
    let mut start = [0; 8];
    within("a response", connection.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1");
    drop(open);
    within("destroying", sandbox.destroy()).await.unwrap();
}

#[tokio::test]
async fn another_user_does_not_reach_a_sandbox_without_a_network() {
    let Some((shared, folders)) = bubblewrap().await else { return };
    within("destroying", shared.destroy()).await.unwrap();
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root || std::process::Command::new("setpriv").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root and setpriv");
        say_not_run("it takes the superuser and setpriv");
        return;
    }
    let (sandbox, address) = relayed(&folders).await;
    let script = format!(
        "exec 3<>/dev/tcp/{} && printf 'GET /v1/health HTTP/1.1\\r\\nhost: h\\r\\nconnection: close\\r\\n\\r\\n' >&3 && cat <&3",
        address.replace(':', "/")
    );
    let ask = async |user: &str| {
        let (reuid, regid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let mut command = tokio::process::Command::new("setpriv");
        command.args([&reuid, &regid, "--clear-groups", "bash", "-c", &script]).kill_on_drop(true);
        let output = within("a request", command.output()).await.unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(ask("0").await.starts_with("HTTP/1.1 "));
    assert_eq!(ask("65534").await, "");
    within("destroying", sandbox.destroy()).await.unwrap();
}

/// The directory with everything that the test below needs in its own process.
const UNPRIVILEGED: &str = "SDK_TESTS_UNPRIVILEGED";

#[tokio::test]
async fn a_sandbox_without_a_network_needs_no_privileges() {
    let Some(program) = released(VERSION).await else { return };
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root || std::process::Command::new("setpriv").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root and setpriv");
        say_not_run("it takes the superuser and setpriv");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let own = |path: &Path, mode| {
        chown(path, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    for (from, name) in [(program, "server"), (std::env::current_exe().unwrap(), "test")] {
        fs::copy(from, folder.path().join(name)).unwrap();
        own(&folder.path().join(name), 0o700);
    }
    own(folder.path(), 0o700);
    let mut command = tokio::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(folder.path().join("test"));
    command.args(["--exact", "provider::without_privileges", "--nocapture"]);
    command.env(UNPRIVILEGED, folder.path()).current_dir(folder.path()).kill_on_drop(true);
    let output = within("the test as another user", command.output()).await.unwrap();
    let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("CONNECTED as 65534"), "{said}{why}");
}

/// A part of the test above, in a process of a user without privileges.
#[tokio::test]
async fn without_privileges() {
    let Some(folder) = std::env::var_os(UNPRIVILEGED).map(PathBuf::from) else { return };
    let provider = BubblewrapProvider::new(folder.join("server"), folder.join("homes")).without_network();
    let sandbox = within("starting", SandboxAgentClient::with_provider(provider).start()).await.unwrap();
    let interfaces = run(&sandbox, "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '").await.stdout;
    assert_eq!(interfaces, "lo\n");
    let settings =
        run(&sandbox, "(: >> /proc/sys/kernel/hostname) 2>/dev/null && echo WRITTEN; unshare -U true").await;
    assert!(!settings.is_success() && settings.stdout.is_empty(), "{settings:?}");
    println!("CONNECTED as {}", run(&sandbox, "id -u").await.stdout);
    within("destroying", sandbox.destroy()).await.unwrap();
}

#[tokio::test]
async fn a_bubblewrap_sandbox_that_cannot_start_leaves_nothing_behind() {
    let Some((sandbox, folders)) = bubblewrap().await else { return };
    sandbox.destroy().await.unwrap();
    let provider = BubblewrapProvider::new("/no/such/program", folders.homes.path());
    let error = within("starting", SandboxAgentClient::with_provider(provider).start()).await.unwrap_err();
    assert!(matches!(error, ProviderError::Local(_)), "{error:?}");
    assert_eq!(fs::read_dir(folders.homes.path()).unwrap().count(), 0);
}

/// A container engine that records its commands and obeys them on paper.
struct Engine {
    folder: TempDir,
}

impl Engine {
    fn new(address: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display();
        let script = format!(
            r#"#!/bin/sh
for word in "$@"; do printf '%s\n' "$word"; done >> '{place}/commands'
printf 'variable=%s\n--\n' "$API_KEY" >> '{place}/commands'
case $1 in
run) for word in "$@"; do case $word in
         --label=*) echo "${{word##*=}}" > '{place}/token';;
         --env-file=*) cat "${{word#*=}}" > '{place}/variables';;
     esac; done
     echo running > '{place}/status'; echo 'Unable to find image locally' >&2; echo pulled; echo c0ffee;;
inspect) [ -e '{place}/status' ] || {{ echo "Error: No such object: $3" >&2; exit 1; }}
     echo "$(cat '{place}/status') $(cat '{place}/token')";;
port) echo '{address}'; echo '[::1]:1';;
pause) echo paused > '{place}/status';;
unpause|start) echo running > '{place}/status';;
rm) [ -e '{place}/status' ] || {{ echo "Error response from daemon: No such container: $4" >&2; exit 1; }}
     rm '{place}/status';;
esac
"#
        );
        fs::write(folder.path().join("engine"), script).unwrap();
        fs::set_permissions(folder.path().join("engine"), Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("engine")
    }

    fn provider(&self) -> ContainerProvider {
        let provider = ContainerProvider::engine(self.program(), "docker", "image:1").port(2468);
        provider.env("API_KEY", "s3cret").run_option("--memory=2g")
    }

    /// The commands so far, each as one line, with the token as a word.
    fn commands(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("commands")).unwrap_or_default();
        let token = fs::read_to_string(self.folder.path().join("token")).unwrap_or_default();
        let commands = text.split("--\n").filter(|command| !command.is_empty());
        commands.map(|command| command.trim().replace('\n', " ").replace(token.trim(), "TOKEN")).collect()
    }
}

#[tokio::test]
async fn a_container_is_run_paused_resumed_and_removed_by_these_commands() {
    let server = MockServer::start().await;
    let engine = Engine::new(&server.address().to_string());
    let provider: Arc<dyn SandboxProvider> = Arc::new(engine.provider());
    assert!(!format!("{provider:?}").contains("s3cret"));
    let shared = || SandboxAgentClient::with_shared_provider(Arc::clone(&provider));
    let sandbox = within("starting", shared().start()).await.unwrap();
    assert_eq!(sandbox.id(), "docker/c0ffee");
    let inspect = "inspect --format={{.State.Status}} {{index .Config.Labels \"sandbox-agent-sdk.token\"}} c0ffee variable=";
    let run = "run --detach --init --publish=127.0.0.1::2468 --label=sandbox-agent-sdk.token=TOKEN --env-file=/dev/stdin \
               --memory=2g image:1 sandbox-agent server --no-telemetry --host 0.0.0.0 --port 2468 --token TOKEN variable=";
    let port = "port c0ffee 2468/tcp variable=";
    assert_eq!(engine.commands(), [run, inspect, port]);
    let variables = fs::read_to_string(engine.folder.path().join("variables")).unwrap();
    assert_eq!(variables, "API_KEY=s3cret\n");
    let token = fs::read_to_string(engine.folder.path().join("token")).unwrap();
    assert_eq!(token.trim().len(), 64);
    let bearer = format!("Bearer {}", token.trim());
    assert!(server.requests().iter().all(|request| request.header("authorization") == Some(bearer.as_str())));

    sandbox.pause().await.unwrap();
    assert_eq!(engine.commands()[3..], ["pause c0ffee variable="]);
    let sandbox = within("attaching", shared().sandbox_id("docker/c0ffee").start()).await.unwrap();
    assert_eq!(engine.commands()[4..], [inspect, "unpause c0ffee variable=", port]);
    sandbox.destroy().await.unwrap();
    assert_eq!(engine.commands()[7..], ["rm --force --volumes c0ffee variable="]);
    provider.destroy("c0ffee").await.expect("one that is gone is fine");
    let gone = shared().sandbox_id("docker/c0ffee").start().await.unwrap_err();
    assert!(matches!(gone, ProviderError::NotFound(_)), "{gone:?}");
}

#[tokio::test]
async fn a_container_whose_server_does_not_come_up_is_removed() {
    let engine = Engine::new("127.0.0.1:9");
    let start =
        SandboxAgentClient::with_provider(engine.provider()).start_timeout(Duration::from_millis(200));
    let error = within("starting", start.start()).await.unwrap_err();
    assert!(matches!(error, ProviderError::Server(_)), "{error:?}");
    assert!(engine.commands().last().unwrap().starts_with("rm --force"), "{:?}", engine.commands());
}

#[tokio::test]
async fn an_engine_that_fails_or_is_missing_says_why() {
    let missing = ContainerProvider::engine("/no/such/engine", "docker", "image");
    let error = SandboxAgentClient::with_provider(missing).start().await.unwrap_err();
    assert!(matches!(error, ProviderError::Program { .. }), "{error:?}");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("engine");
    fs::write(&program, "#!/bin/sh\necho 'permission denied while trying to connect' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let failing = ContainerProvider::engine(&program, "docker", "image").env("KEY", "s3cret");
    let error = SandboxAgentClient::with_provider(failing).start().await.unwrap_err();
    let ProviderError::Engine { command, output, .. } = &error else { panic!("{error:?}") };
    assert!(command.ends_with("engine run") && output.contains("permission denied"), "{error:?}");
    assert!(!format!("{error:?}").contains("s3cret"));
}

/// Tells the test below that it runs in the process that it started itself.
const PLANTED: &str = "SDK_TESTS_PLANTED";

#[test]
fn an_engine_of_the_working_directory_is_not_run() {
    if std::env::var_os(PLANTED).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(ContainerProvider::docker("image").start()).unwrap_err();
        assert!(matches!(error, ProviderError::Program { .. }), "{error:?}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("docker"), "#!/bin/sh\n: > owned\necho c0ffee\n").unwrap();
    fs::set_permissions(folder.path().join("docker"), Permissions::from_mode(0o755)).unwrap();
    for path in [".", ":"] {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "provider::an_engine_of_the_working_directory_is_not_run", "--nocapture"]);
        command.env(PLANTED, "1").env("PATH", path).current_dir(folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!folder.path().join("owned").exists(), "a planted program ran");
    }
}

#[tokio::test]
async fn an_engine_that_other_users_can_replace_is_not_run() {
    let engine = Engine::new("127.0.0.1:9");
    fs::set_permissions(engine.program(), Permissions::from_mode(0o757)).unwrap();
    let error = engine.provider().start().await.unwrap_err();
    assert!(matches!(error, ProviderError::Local(_)), "{error:?}");
    assert!(engine.commands().is_empty(), "{:?}", engine.commands());
}
