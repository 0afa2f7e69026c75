//! Attacks on the sandbox of terminals. Each is harmless if it succeeds.
#![cfg(target_os = "linux")]

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sandbox_agent_sdk::tools::{
    AgentTools, PathProblem, Roots, TerminalCommand, TerminalError, TerminalOptions, Terminals,
};
use sandbox_agent_sdk::tools::{Sandbox, SandboxError};
use serde_json::json;

use super::looking::runs;
use super::support::{Place, line_after, run, script, sh, until, within};

/// What a test does in the process that it started itself.
const ROLE: &str = "SDK_TESTS_ROLE";

/// A sandbox, if this machine has bubblewrap. It must have it if `CI` is set.
pub(crate) fn sandbox() -> Option<Sandbox> {
    match Sandbox::detect() {
        Ok(sandbox) => Some(sandbox),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            eprintln!("NOT TESTED: {error}");
            None
        }
    }
}

fn confined(place: &Place) -> Option<Terminals> {
    Some(Terminals::new(place.options().sandbox(sandbox()?)))
}

/// A number of seconds to sleep that no other process sleeps: it identifies a process in every namespace.
fn unique() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("9{:08}.5", RandomState::new().hash_one(0) % 100_000_000)
}

/// The processes of this machine that have a word in their command line.
fn processes(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == word.as_bytes()) && runs(pid)
    })
    .collect()
}

/// This test program in one of its roles.
fn role(role: &str, arguments: &[&str]) -> TerminalCommand {
    let program = std::env::current_exe().unwrap().display().to_string();
    let mut command =
        TerminalCommand::new(program).args(["--exact", "sandbox::roles", "--nocapture"]).env(ROLE, role);
    for (index, argument) in arguments.iter().enumerate() {
        command = command.env(format!("{ROLE}_{index}"), *argument);
    }
    command
}

fn argument(index: usize) -> String {
    std::env::var(format!("{ROLE}_{index}")).unwrap()
}

/// The programs that other tests run. Without a role it does nothing.
#[test]
fn roles() {
    match std::env::var(ROLE).as_deref() {
        // Tries every way out over a socket.
        Ok("sockets") => {
            let say =
                |what: &str, worked: bool| println!("{what} {}", if worked { "REACHED" } else { "closed" });
            say("tcp", std::net::TcpStream::connect(argument(0)).is_ok());
            let udp = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"udp", argument(1)));
            println!("udp {udp:?}");
            say("unix", UnixStream::connect(argument(2)).is_ok());
            let name = SocketAddr::from_abstract_name(argument(3)).unwrap();
            say("abstract", UnixStream::connect_addr(&name).is_ok());
        }
        // Runs a command in a sandbox until it is killed.
        Ok("host") => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let options =
                    TerminalOptions::new(Roots::at(argument(0))).sandbox(Sandbox::detect().unwrap());
                let terminals = Terminals::new(options);
                let line = format!("setsid -f sleep {0}; exec sleep {0}", argument(1));
                terminals.create("s", &sh(&line)).unwrap();
                until(|| processes(&argument(1)).len() == 2).await;
                println!("ready");
                std::future::pending::<()>().await;
            });
        }
        _ => {}
    }
}

#[tokio::test]
async fn a_command_writes_to_its_roots_and_nowhere_else() {
    let place = Place::new();
    let Some(terminals) = confined(&place) else { return };
    let outside = place.outside().canonicalize().unwrap();
    let target = outside.join("planted");
    symlink(&outside, place.at("link")).unwrap();
    let line = format!(
        "echo in > inside; echo x > {target}; echo x > link/planted; echo x > /etc/sdk-planted; \
         echo x > /usr/sdk-planted; mkdir -p {outside}/deep; echo t > /tmp/mine; cat /tmp/mine inside; ls {outside}",
        target = target.display(),
        outside = outside.display()
    );
    let text = run(&terminals, &line).await;
    assert_eq!(std::fs::read_to_string(place.at("inside")).unwrap(), "in\n");
    assert!(text.contains("t\nin\n"), "it has a temporary directory of its own: {text}");
    assert!(!text.contains("secret"), "what is beside the root in the temporary directory is hidden: {text}");
    for planted in [target.as_path(), Path::new("/etc/sdk-planted"), Path::new("/usr/sdk-planted")] {
        assert!(!planted.exists(), "{}", planted.display());
    }
    assert!(!Path::new("/tmp/mine").exists() && !outside.join("deep").exists());
}

#[tokio::test]
async fn a_command_reaches_no_socket_of_this_machine() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_nonblocking(true).unwrap();
    let path = place.outside().join("socket");
    let _unix = UnixListener::bind(&path).unwrap();
    let name = format!("sdk-tests-{}", unique());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let addresses = [
        tcp.local_addr().unwrap().to_string(),
        udp.local_addr().unwrap().to_string(),
        path.display().to_string(),
        name,
    ];
    let command = role("sockets", &addresses.each_ref().map(String::as_str));
    let exe = std::env::current_exe().unwrap();
    let sandbox = sandbox.read(exe.parent().unwrap());
    let attack = async |options: TerminalOptions| {
        let terminals = Terminals::new(options);
        let id = terminals.create("s", &command).unwrap();
        within(terminals.wait_for_exit("s", &id)).await.unwrap();
        terminals.output("s", &id, None).unwrap().text
    };
    let text = attack(place.options().sandbox(sandbox.clone())).await;
    for way in ["tcp closed", "unix closed", "abstract closed"] {
        assert!(text.contains(way), "{way}: {text}");
    }
    assert!(udp.recv(&mut [0; 8]).is_err(), "a datagram arrived");
    // The attack works without the sandbox, and with a network only over the network.
    let text = attack(place.options()).await;
    for way in ["tcp REACHED", "unix REACHED", "abstract REACHED"] {
        assert!(text.contains(way), "{way}: {text}");
    }
    assert_eq!(udp.recv(&mut [0; 8]).unwrap(), 3);
    let text = attack(place.options().sandbox(sandbox.allow_network())).await;
    assert!(text.contains("tcp REACHED") && text.contains("unix closed"), "{text}");
}

#[tokio::test]
async fn a_command_has_no_privileges_and_cannot_get_any() {
    let place = Place::new();
    let Some(terminals) = confined(&place) else { return };
    let text = run(
        &terminals,
        "grep -E 'Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs' /proc/self/status; \
         mount -o remount,rw / 2>/dev/null && echo GOT remount; \
         mount -t tmpfs none /mnt 2>/dev/null && echo GOT mount; \
         unshare -Ur true 2>/dev/null && echo GOT namespace; \
         unshare -m true 2>/dev/null && echo GOT mounts; \
         chroot / true 2>/dev/null && echo GOT chroot; \
         (: >> /proc/sys/kernel/core_pattern) 2>/dev/null && echo GOT core pattern; \
         (: >> /proc/sys/kernel/hostname) 2>/dev/null && echo GOT host name; \
         (: >> /proc/sysrq-trigger) 2>/dev/null && echo GOT sysrq; \
         mkdir /sys/fs/cgroup/sdk-tests 2>/dev/null && echo GOT cgroup; \
         ls /dev/sda /dev/vda /dev/mem /dev/kmsg 2>/dev/null && echo GOT devices; \
         mknod null c 1 3 2>/dev/null && echo x > null && echo GOT device; echo done",
    )
    .await;
    assert!(!text.contains("GOT") && text.ends_with("done\n"), "{text}");
    let capabilities: Vec<_> = text.lines().filter(|line| line.starts_with("Cap")).collect();
    assert_eq!(capabilities.len(), 4, "{text}");
    assert!(capabilities.iter().all(|line| line.ends_with("\t0000000000000000")), "{text}");
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
}

/// A process outside of the sandbox, which ends with the test.
struct Victim(std::process::Child);

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn a_command_sees_and_signals_no_process_outside() {
    let place = Place::new();
    let Some(terminals) = confined(&place) else { return };
    let me = std::process::id();
    let seconds = unique();
    let mut victim = Victim(Command::new("sleep").arg(&seconds).stdout(Stdio::null()).spawn().unwrap());
    // In brackets, so that the search does not find itself.
    let line = format!(
        "kill -9 {} 2>/dev/null && echo KILLED; kill -0 {me} 2>/dev/null && echo SEEN; \
         grep -l '[9]{}' /proc/[0-9]*/cmdline; echo done",
        victim.0.id(),
        &seconds[1..]
    );
    assert!(run(&place.terminals(), &line.replace("kill -9", "kill -0")).await.contains("/proc/"));
    let text = run(&terminals, &line).await;
    assert_eq!(text, "done\n");
    assert!(victim.0.try_wait().unwrap().is_none(), "it was killed");
}

#[tokio::test]
async fn home_directories_are_empty_unless_a_part_is_made_visible() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    let terminals = Terminals::new(place.options().sandbox(sandbox.clone()));
    let text = run(&terminals, "ls -A \"$HOME\" /run; touch \"$HOME\"/scratch && echo writable").await;
    assert!(text.ends_with("writable\n"), "{text}");
    assert_eq!(text.lines().filter(|line| !line.is_empty() && !line.ends_with(':')).count(), 1, "{text}");
    let secret = place.outside().join("secret");
    let show = format!("cat {0}; echo x >> {0}", secret.display());
    assert!(!run(&terminals, &show).await.contains("secret\n"));
    let visible = Terminals::new(place.options().sandbox(sandbox.clone().read(place.outside())));
    assert!(run(&visible, &show).await.starts_with("secret"));
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret", "it can be read and not written");
    let hidden = Terminals::new(place.options().sandbox(sandbox.hide("/etc").unwrap()));
    assert_eq!(run(&hidden, "ls -A /etc").await, "");
}

#[tokio::test]
async fn what_is_hidden_is_hidden_below_roots_and_visible_directories_too() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    for directory in ["private", "plain", "conf"] {
        std::fs::create_dir(place.at(directory)).unwrap();
    }
    for name in [".env", "private/key", "plain/text", "conf/key"] {
        place.file(name, format!("content of {name}\n"));
    }
    std::fs::write(place.outside().join("other"), "other\n").unwrap();
    symlink(place.outside(), place.root().with_file_name("link")).unwrap();
    let link = place.root().with_file_name("link");
    let hides = [place.at(".env"), place.at("private"), place.at("conf/key"), place.outside().join("secret")];
    let mut sandbox = sandbox.read(place.outside()).read(&link);
    for path in hides {
        sandbox = sandbox.hide(path).unwrap();
    }
    let terminals = Terminals::new(place.options().sandbox(sandbox));
    let outside = format!("{0}/secret {0}/other {1}/secret", place.outside().display(), link.display());
    let show = format!("cat .env private/key plain/text conf/key {outside}; ls -A private");
    let text = run(&terminals, &show).await;
    assert!(text.contains("content of plain/text") && text.contains("other\n"), "{text}");
    for secret in ["content of .env", "content of private/key", "content of conf/key", "secret\n"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert_eq!(text.matches("secret").count(), text.matches("/secret:").count(), "{text}");
    // A command cannot move what is hidden to where it is visible.
    run(
        &terminals,
        "mv conf moved; mkdir conf; echo x > conf/key; mv private public; mv .env env; ln .env hard",
    )
    .await;
    let text = run(&terminals, "cat moved/key public/key env .env hard private/key conf/key").await;
    assert!(!text.contains("content of"), "{text}");
    // A new file at the path is hidden too.
    std::fs::remove_file(place.at(".env")).unwrap();
    place.file(".env", "new secret\n");
    assert!(!run(&terminals, "cat .env").await.contains("new secret"));
}

#[tokio::test]
async fn a_root_below_a_hidden_directory_is_visible() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    place.file("f", "content\n");
    let parent = place.root().parent().unwrap().to_owned();
    std::fs::write(parent.join("beside"), "secret\n").unwrap();
    let sandbox = sandbox.read(&parent).hide(&parent).unwrap();
    let terminals = Terminals::new(place.options().sandbox(sandbox));
    let text = run(&terminals, &format!("cat f {}", parent.join("beside").display())).await;
    assert!(text.starts_with("content\n") && !text.contains("secret\n"), "{text}");
}

#[test]
fn a_path_to_hide_that_does_not_exist_is_a_typed_error() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    for path in [place.at("mistyped"), "/".into()] {
        let error = sandbox.clone().hide(&path).unwrap_err();
        assert!(matches!(&error, SandboxError::Hide { path: named, .. } if *named == path), "{error:?}");
    }
}

#[tokio::test]
async fn roots_can_be_read_only() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    place.file("f", "old\n");
    let terminals = Terminals::new(place.options().sandbox(sandbox.read_only_roots()));
    let text = run(&terminals, "cat f; echo new > f; echo x > g").await;
    assert!(text.starts_with("old\n"), "{text}");
    assert_eq!(std::fs::read_to_string(place.at("f")).unwrap(), "old\n");
    assert!(!place.at("g").exists());
}

#[tokio::test]
async fn variables_of_the_agent_do_not_reach_the_program_that_makes_the_sandbox() {
    let place = Place::new();
    let Some(terminals) = confined(&place) else { return };
    let owned = place.outside().join("owned");
    let source = format!(
        "#include <stdio.h>\n__attribute__((constructor)) static void attack(void) {{ FILE *f = fopen(\"{}\", \"w\"); if (f) fclose(f); }}",
        owned.display()
    );
    let code = place.file("evil.c", source);
    let library = place.at("evil.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(code).status();
    assert!(compiled.expect("a C compiler").success());
    let command = |line: &str| sh(line).env("LD_PRELOAD", library.display().to_string());
    let id = terminals.create("s", &command("echo $LD_PRELOAD")).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    let text = terminals.output("s", &id, None).unwrap().text;
    assert_eq!(text.trim(), library.display().to_string(), "the command itself has the variable");
    assert!(!owned.exists(), "the library ran outside of the sandbox");
    // The attack works without the sandbox.
    let plain = place.terminals();
    let id = plain.create("s", &command("true")).unwrap();
    within(plain.wait_for_exit("s", &id)).await.unwrap();
    assert!(owned.exists());
}

#[tokio::test]
async fn a_root_in_another_root_cannot_be_swapped_for_a_link_to_elsewhere() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    std::fs::create_dir(place.at("inner")).unwrap();
    let roots = Roots::at(place.root()).and(place.at("inner"));
    let terminals = Terminals::new(TerminalOptions::new(roots).sandbox(sandbox));
    let outside = place.outside().canonicalize().unwrap();
    run(&terminals, &format!("rmdir inner && ln -s {} inner", outside.display())).await;
    assert!(place.at("inner").is_symlink());
    let text = run(&terminals, "echo x > inner/planted").await;
    assert!(!outside.join("planted").exists(), "{text}");
    let result = terminals.create("s", &sh("echo x > planted").cwd(place.at("inner")));
    if let Ok(id) = result {
        within(terminals.wait_for_exit("s", &id)).await.unwrap();
    }
    assert!(!outside.join("planted").exists());
}

#[tokio::test]
async fn an_allowed_program_that_runs_others_is_still_confined() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    let planted = place.outside().join("planted");
    let attack = format!("alias.x=!touch {}", planted.display());
    let command = TerminalCommand::new("git").args(["-c", &attack, "x"]);
    let options = place.options().allow_only(["git"]);
    let terminals = Terminals::new(options.clone().sandbox(sandbox));
    let id = terminals.create("s", &command).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert!(!planted.exists());
    // A list of programs alone stops nothing.
    let terminals = Terminals::new(options);
    let id = terminals.create("s", &command).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert!(planted.exists());
}

/// Gives up session, parent, environment and limits, at a moment when the limit was certainly set.
fn shed(place: &Place, seconds: &str) -> String {
    let live = script(place, "live", &format!("exec sleep {seconds}"));
    format!(
        "while [ ! -e go ]; do sleep 0.01; done; \
         env -i prlimit --rttime=12345678:12345678 setsid -f {live} </dev/null >/dev/null 2>&1; echo left; exec sleep {seconds}"
    )
}

#[tokio::test]
async fn a_command_that_gives_up_session_parent_environment_and_limits_ends_with_its_terminal() {
    for end in ["kill", "release", "close", "drop"] {
        let place = Place::new();
        let Some(terminals) = confined(&place) else { return };
        let tools = AgentTools::new().terminals(terminals.clone());
        let seconds = unique();
        let id = terminals.create("s", &sh(&shed(&place, &seconds))).unwrap();
        place.file("go", "");
        until(|| processes(&seconds).len() == 2).await;
        match end {
            "kill" => {
                let params = json!({"sessionId": "s", "terminalId": id});
                within(tools.respond("terminal/kill", &params).unwrap()).await.unwrap();
            }
            "release" => within(terminals.release("s", &id)).await.unwrap(),
            "close" => terminals.close(),
            _ => drop((terminals, tools)),
        }
        assert_eq!(processes(&seconds), Vec::<String>::new(), "{end}");
    }
}

#[tokio::test]
async fn without_a_sandbox_such_a_command_survives() {
    let place = Place::new();
    let terminals = place.terminals();
    let seconds = unique();
    let id = terminals.create("s", &sh(&shed(&place, &seconds))).unwrap();
    place.file("go", "");
    until(|| processes(&seconds).len() == 2).await;
    within(terminals.release("s", &id)).await.unwrap();
    let left = processes(&seconds);
    assert_eq!(left.len(), 1, "if it no longer survives, say so in the documentation");
    assert!(Command::new("kill").args(["-9", &left[0]]).status().unwrap().success());
}

#[tokio::test]
async fn commands_end_with_a_program_that_is_killed() {
    let place = Place::new();
    if sandbox().is_none() {
        return;
    }
    let seconds = unique();
    let mut host = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::roles", "--nocapture"])
        .env(ROLE, "host")
        .env(format!("{ROLE}_0"), place.root())
        .env(format!("{ROLE}_1"), &seconds)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| processes(&seconds).len() == 2).await;
    let mut said = String::new();
    let mut stdout = host.stdout.take().unwrap();
    while !said.contains("ready") {
        let mut piece = [0; 256];
        let count = stdout.read(&mut piece).unwrap();
        assert!(count > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    host.kill().unwrap();
    host.wait().unwrap();
    until(|| processes(&seconds).is_empty()).await;
}

#[tokio::test]
async fn a_command_outlives_the_thread_that_asked_for_it() {
    let place = Place::new();
    let Some(terminals) = confined(&place) else { return };
    let (runtime, copy) = (tokio::runtime::Handle::current(), terminals.clone());
    let asking = std::thread::spawn(move || {
        let _entered = runtime.enter();
        copy.create("s", &sh("while [ ! -e go ]; do sleep 0.01; done; echo still here")).unwrap()
    });
    let id = asking.join().unwrap();
    place.file("go", "");
    line_after(&terminals, &id, "still here").await;
    assert_eq!(within(terminals.wait_for_exit("s", &id)).await.unwrap().code, Some(0));
}

#[tokio::test]
async fn exits_and_missing_programs_are_reported_as_without_a_sandbox() {
    let place = Place::new();
    let Some(terminals) = confined(&place) else { return };
    let exit = async |line: &str| {
        let id = terminals.create("s", &sh(line)).unwrap();
        within(terminals.wait_for_exit("s", &id)).await.unwrap().code
    };
    assert_eq!((exit("exit 7").await, exit("kill -9 $$").await), (Some(7), Some(137)));
    for missing in ["sdk-no-such-program", "/nowhere/program", "./none"] {
        let result = terminals.create("s", &TerminalCommand::new(missing));
        assert!(matches!(result, Err(TerminalError::NoCommand(_))), "{missing}: {result:?}");
    }
    let own = script(&place, "own", "echo $1 in $PWD");
    for name in [own.as_str(), "./own"] {
        let id = terminals.create("s", &TerminalCommand::new(name).args(["--ro-bind"])).unwrap();
        within(terminals.wait_for_exit("s", &id)).await.unwrap();
        let expected = format!("--ro-bind in {}\n", place.root().canonicalize().unwrap().display());
        assert_eq!(terminals.output("s", &id, None).unwrap().text, expected);
    }
    let everything = Terminals::new(TerminalOptions::new(Roots::at("/")).sandbox(sandbox().unwrap()));
    assert!(matches!(everything.create("s", &sh("true")), Err(TerminalError::Outside(_))));
}

#[test]
fn a_bubblewrap_that_other_users_can_replace_is_not_run() {
    let place = Place::new();
    let program = script(&place, "bwrap", "exit 0");
    assert!(Sandbox::with_program(&program).is_ok());
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o757)).unwrap();
    let error = Sandbox::with_program(&program).unwrap_err();
    assert!(
        matches!(&error, SandboxError::Untrusted { entry, problem: PathProblem::WritableByOthers { .. }, .. }
            if entry.ends_with("bwrap")),
        "{error:?}"
    );
}

#[test]
fn a_system_without_a_working_bubblewrap_is_a_typed_error() {
    let place = Place::new();
    let missing = Sandbox::with_program("/nowhere/bwrap").unwrap_err();
    assert!(
        matches!(&missing, SandboxError::NotFound(path) if path == &PathBuf::from("/nowhere/bwrap")),
        "{missing:?}"
    );
    let hostile = Sandbox::with_program("/nowhere/\u{1b}]0;owned\u{7}").unwrap_err().to_string();
    assert!(hostile.contains("owned") && !hostile.contains(char::is_control), "{hostile:?}");
    let refused = script(&place, "bwrap", "echo 'bwrap: no permission to create a namespace' >&2; exit 1");
    let error = Sandbox::with_program(refused).unwrap_err();
    assert!(
        matches!(&error, SandboxError::Unusable { message, .. } if message.contains("no permission")),
        "{error:?}"
    );
}
