//! Attacks on what a sandbox hides and shows. Each is harmless if it succeeds.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use sandbox_agent_sdk::tools::{Roots, Sandbox, TerminalOptions, Terminals};

use super::sandbox::sandbox;
use super::support::{Place, line_after, run, sh, within};

/// How many commands start while another one renames directories.
const STARTS: usize = 60;

fn terminals(place: &Place, sandbox: Sandbox) -> Terminals {
    Terminals::new(place.options().sandbox(sandbox))
}

/// A command cannot move the directories above a hidden file, so that the file is where it is hidden.
#[tokio::test]
async fn a_command_that_renames_directories_shows_no_hidden_file_to_another_one() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    for directory in ["conf", "conf/deep", "decoy", "decoy/deep"] {
        fs::create_dir(place.at(directory)).unwrap();
    }
    place.file("conf/deep/key", "hush\n");
    place.file("decoy/deep/key", "decoy\n");
    let sandbox = sandbox.hide(place.at("conf/deep/key")).unwrap();
    let terminals = terminals(&place, sandbox);
    let renaming = "echo started; while [ ! -e stop ]; do \
         mv -T conf away; mv -T decoy conf; mv -T conf decoy; mv -T away conf; \
         mv -T conf/deep conf/away; mv -T conf/away conf/deep; done 2>/dev/null; echo over";
    let attack = terminals.create("s", &sh(renaming)).unwrap();
    line_after(&terminals, &attack, "started").await;
    let mut shown = 0;
    for _ in 0..STARTS {
        let id = terminals.create("s", &sh("cat */deep/key */*/key 2>/dev/null; echo end")).unwrap();
        within(terminals.wait_for_exit("s", &id)).await.unwrap();
        shown += usize::from(terminals.output("s", &id, None).unwrap().text.contains("hush"));
        within(terminals.release("s", &id)).await.unwrap();
    }
    place.file("stop", "");
    within(terminals.wait_for_exit("s", &attack)).await.unwrap();
    assert_eq!(shown, 0, "of {STARTS} commands");
    assert_eq!(fs::read_to_string(place.at("conf/deep/key")).unwrap(), "hush\n", "it is still there");
}

/// What is in the directories above a hidden file can be used as without it.
#[tokio::test]
async fn directories_above_a_hidden_file_can_be_written() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    fs::create_dir(place.at("conf")).unwrap();
    for name in ["conf/key", "conf/plain"] {
        place.file(name, "content\n");
    }
    let hidden = sandbox.hide(place.at("conf/key")).unwrap();
    let usable = terminals(&place, hidden.clone());
    let text =
        run(&usable, "echo more >> conf/plain && mv conf/plain conf/moved && mv conf/moved out && cat out")
            .await;
    assert_eq!(text, "content\nmore\n");
    let text = run(&terminals(&place, hidden.read_only_roots()), "echo x > conf/new; cat out conf/key").await;
    assert!(!place.at("conf/new").exists() && text.matches("content").count() == 1, "{text}");
}

/// Documented: hide the directory of a file that other programs replace.
#[tokio::test]
async fn a_file_that_is_replaced_while_a_command_runs_stays_hidden_in_a_hidden_directory() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    fs::create_dir(place.at("private")).unwrap();
    for name in [".env", "private/.env"] {
        place.file(name, "old\n");
    }
    let sandbox = sandbox.hide(place.at(".env")).unwrap().hide(place.at("private")).unwrap();
    let terminals = terminals(&place, sandbox);
    let line = "echo started; while [ ! -e go ]; do sleep 0.01; done; \
         cat .env | sed 's/^/file /'; cat private/.env | sed 's/^/directory /'; echo over";
    let id = terminals.create("s", &sh(line)).unwrap();
    line_after(&terminals, &id, "started").await;
    for name in [".env", "private/.env"] {
        place.file("new", "replaced\n");
        fs::rename(place.at("new"), place.at(name)).unwrap();
    }
    place.file("go", "");
    line_after(&terminals, &id, "over").await;
    let text = terminals.output("s", &id, None).unwrap().text;
    assert!(!text.contains("directory replaced"), "{text}");
    assert!(text.contains("file replaced"), "if it stays hidden, say so in the documentation: {text}");
    // The next command does not see it.
    assert!(!run(&terminals, "cat .env").await.contains("replaced"));
}

/// A home directory outside of the roots, with a secret in it.
fn home(place: &Place) -> PathBuf {
    let home = place.outside().canonicalize().unwrap();
    fs::write(home.join(".netrc"), "hush\n").unwrap();
    home
}

#[tokio::test]
async fn a_visible_path_in_a_root_cannot_be_turned_into_another_file() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    let secret = home(&place).join(".netrc");
    fs::create_dir_all(place.at("sub/lib")).unwrap();
    place.file("sub/lib/code", "library\n");
    // One of the paths does not exist yet: a command can create it.
    let sandbox = sandbox.read(place.at("sub/lib")).read(place.at("later")).read(place.at("none/later"));
    let terminals = terminals(&place, sandbox);
    let link = secret.display();
    let line = format!(
        "mv sub away; mkdir -p sub none; rm -rf sub/lib; ln -s {link} sub/lib; ln -s {link} later; ln -s {link} none/later"
    );
    run(&terminals, &line).await;
    assert!(place.at("later").is_symlink(), "the attack works as far as it can");
    let text = run(&terminals, "cat sub/lib sub/lib/code later none/later").await;
    assert!(!text.contains("hush"), "{text}");
    assert!(text.contains("library"), "what was made visible is still there: {text}");
    assert!(
        !run(&terminals, "echo x > sub/lib/code; cat sub/lib/code").await.contains('x'),
        "it is read-only"
    );
}

/// A link that the application makes visible on purpose shows its target, and only that one.
#[tokio::test]
async fn a_visible_link_shows_what_it_led_to_when_it_was_made_visible() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    let home = home(&place);
    fs::create_dir(home.join("tool")).unwrap();
    fs::write(home.join("tool/run"), "tool\n").unwrap();
    let link = home.join("current");
    symlink("tool", &link).unwrap();
    let terminals = terminals(&place, sandbox.read(&link));
    let show = format!("cat {0}/run {0}/.netrc {0}", link.display());
    assert!(run(&terminals, &show).await.starts_with("tool\n"));
    fs::remove_file(&link).unwrap();
    symlink(".", &link).unwrap();
    let text = run(&terminals, &show).await;
    assert!(!text.contains("hush"), "{text}");
}

/// Other users can read the command lines of all processes.
#[tokio::test]
async fn no_command_line_has_the_value_of_a_variable() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    let terminals = terminals(&place, sandbox);
    let secret = format!("hush-{}", std::process::id());
    let line = "echo \"value $KEY\"; readlink /proc/self/fd/0; readlink /proc/$$/fd/* | grep -c memfd; echo started; \
         while [ ! -e go ]; do sleep 0.01; done";
    let id = terminals.create("s", &sh(line).env("KEY", &secret)).unwrap();
    assert_eq!(line_after(&terminals, &id, "value ").await, secret);
    line_after(&terminals, &id, "started").await;
    let text = terminals.output("s", &id, None).unwrap().text;
    let lines: Vec<_> = text.lines().collect();
    // Programs such as `rg` read a pipe in place of the working directory.
    assert_eq!(lines[1..3], ["/dev/null", "0"], "{text}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let seen = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let seen: Vec<_> = seen.map(|line| String::from_utf8_lossy(&line).into_owned()).collect();
    place.file("go", "");
    let with_secret: Vec<_> = seen.iter().filter(|line| line.contains(&secret)).collect();
    assert!(with_secret.is_empty(), "{with_secret:?}");
    assert!(seen.iter().any(|line| line.contains("value $KEY")), "the command was looked at");
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
}

/// More than a pipe holds.
#[tokio::test]
async fn large_variables_reach_a_command() {
    let place = Place::new();
    let Some(sandbox) = sandbox() else { return };
    let terminals = terminals(&place, sandbox);
    let mut command = sh("echo $((${#A} + ${#B} + ${#C}))");
    for name in ["A", "B", "C"] {
        command = command.env(name, "x".repeat(100_000));
    }
    let id = terminals.create("s", &command).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(terminals.output("s", &id, None).unwrap().text, "300000\n");
}

/// Services put sockets and secrets into the directory that `TMPDIR` names.
#[tokio::test]
async fn the_temporary_directory_of_the_environment_is_hidden() {
    let place = Place::new();
    if sandbox().is_none() {
        return;
    }
    // Not below a directory that is hidden anyway.
    let temporary = match tempfile::tempdir_in("/var") {
        Ok(temporary) => temporary,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "this test needs root: {error}");
            eprintln!("NOT TESTED: {error}");
            return;
        }
    };
    fs::write(temporary.path().join("secret"), "hush\n").unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hidden::in_another_temporary_directory", "--nocapture"])
        .env("TMPDIR", temporary.path())
        .env(IN_ROOT, place.root())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && text.contains("SHOWN []"), "{text}");
}

/// The root of the test that runs in its own process.
const IN_ROOT: &str = "SDK_TESTS_IN_ROOT";

/// A part of the test above, in its own process: it has another environment.
#[tokio::test]
async fn in_another_temporary_directory() {
    let Some(root) = std::env::var_os(IN_ROOT) else { return };
    let options = TerminalOptions::new(Roots::at(PathBuf::from(root))).sandbox(Sandbox::detect().unwrap());
    let secret = std::env::temp_dir().join("secret");
    let text = run(&Terminals::new(options), &format!("cat {}", secret.display())).await;
    let shown: Vec<_> = text.lines().filter(|line| *line == "hush").collect();
    println!("SHOWN {shown:?}");
}
