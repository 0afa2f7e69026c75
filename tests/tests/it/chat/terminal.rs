//! A terminal with the chat in it.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;

/// How long something may take to be seen. It is a bound for a machine that is busy, and not a measure of anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often is looked.
const GLANCE: Duration = Duration::from_millis(25);

/// The program under test.
pub(crate) const CHAT: &str = env!("CARGO_BIN_EXE_chat");

/// A separate tmux server, with one pane in which the chat runs below a shell that prints how it ended.
pub(crate) struct Terminal {
    directory: TempDir,
}

/// How the chat is started.
#[derive(Debug, Default, Clone)]
pub(crate) struct Start {
    pub(crate) arguments: String,
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Start {
    pub(crate) fn with(url: &str) -> Self {
        Self { arguments: String::new(), environment: vec![("SANDBOX_AGENT_URL", url.to_owned())] }
    }
}

/// Whether tmux is there. Without it the tests of the terminal say so and pass, but not where everything must be.
pub(crate) fn tmux_is_missing() -> bool {
    let missing = std::process::Command::new("tmux").arg("-V").output().is_err();
    assert!(!missing || std::env::var_os("CI").is_none(), "tmux is not installed, and CI is set");
    if missing {
        eprintln!("SKIPPED: tmux is not installed, so the chat is not tested in a terminal");
    }
    missing
}

impl Terminal {
    /// Starts the chat in a terminal of 80 columns and 24 rows.
    pub(crate) async fn start(start: &Start) -> Self {
        Self::start_program(CHAT, start).await
    }

    /// Starts a program in a terminal of 80 columns and 24 rows.
    pub(crate) async fn start_program(program: &str, start: &Start) -> Self {
        let terminal = Self { directory: tempfile::tempdir().unwrap() };
        let mut line =
            "env -u RUST_BACKTRACE -u NO_COLOR -u SANDBOX_AGENT_URL -u SANDBOX_AGENT_TOKEN".to_owned();
        for (name, value) in &start.environment {
            line.push_str(&format!(" {name}='{value}'"));
        }
        let line = format!(
            "{line} {program} {}; echo \"left with $?\"; stty -a | tr ' ;' '\\n\\n' | grep -xE -- '-?(echo|icanon|isig)' | tr '\\n' ' '; exec cat",
            start.arguments
        );
        terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", &line]).await;
        terminal
    }

    /// Runs a tmux command and gives its output.
    pub(crate) async fn tmux(&self, arguments: &[&str]) -> String {
        let socket = self.directory.path().join("tmux");
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(socket).args(["-f", "/dev/null"]).args(arguments);
        command.env("LC_ALL", "C.UTF-8").env("SHELL", "/bin/sh").env_remove("TMUX");
        let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("tmux hangs").unwrap();
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types a text, letter by letter.
    pub(crate) async fn write(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]).await;
    }

    /// Types a line and ends it.
    pub(crate) async fn line(&self, text: &str) {
        self.write(text).await;
        self.key("Enter").await;
    }

    /// Presses a key by its name.
    pub(crate) async fn key(&self, name: &str) {
        self.tmux(&["send-keys", name]).await;
    }

    /// What is on the screen, without its colours.
    pub(crate) async fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).await
    }

    /// What is on the screen and above it.
    pub(crate) async fn everything(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-S", "-"]).await
    }

    /// What is on the screen, with its colours.
    pub(crate) async fn painted(&self) -> String {
        self.tmux(&["capture-pane", "-pe"]).await
    }

    /// Waits until the screen shows a text, and gives it.
    pub(crate) async fn see(&self, text: &str) -> String {
        self.until(&format!("{text:?} on the screen"), |screen| screen.contains(text)).await
    }

    /// Waits until the screen fits.
    pub(crate) async fn until(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let seen = tokio::time::timeout(PATIENCE, async {
            loop {
                screen = self.screen().await;
                if fits(&screen) {
                    return;
                }
                tokio::time::sleep(GLANCE).await;
            }
        });
        if seen.await.is_err() {
            panic!("no {what} within {PATIENCE:?}; there is:\n{screen}");
        }
        screen
    }

    /// The chat has ended with this code, and the terminal is as it was.
    pub(crate) async fn has_left_with(&self, code: i32) -> String {
        let screen = self.see(&format!("left with {code}\n")).await;
        let restored = self.until("terminal settings", |screen| screen.contains("isig")).await;
        let settings = restored.lines().find(|line| line.contains("isig")).unwrap();
        let mut words: Vec<&str> = settings.split_whitespace().collect();
        words.sort_unstable();
        assert_eq!(words, ["echo", "icanon", "isig"], "the terminal is not as it was");
        assert_eq!(self.tmux(&["display-message", "-p", "#{cursor_flag}"]).await.trim(), "1", "no cursor");
        screen
    }

    /// Ends the terminal without a word to what runs in it.
    pub(crate) async fn kill(&self) {
        let tmux = self.tmux(&["display-message", "-p", "#{pid}"]).await;
        let killed = std::process::Command::new("kill").args(["-KILL", tmux.trim()]).status().unwrap();
        assert!(killed.success());
    }

    /// The process of the chat.
    pub(crate) async fn process(&self) -> u32 {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]).await.trim().to_owned();
        let children = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(Path::new(&children)).unwrap();
        children.split_whitespace().next().expect("the chat runs").parse().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let socket = self.directory.path().join("tmux");
        // It may have exited already.
        let _ = std::process::Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}
