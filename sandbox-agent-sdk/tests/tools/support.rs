//! What the tests share.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_agent_sdk::tools::{
    ConfinedFiles, FileError, LineRange, ReadText, Roots, TerminalCommand, TerminalOptions, Terminals,
    TextFiles, WriteText,
};
use tempfile::TempDir;

/// What has to happen in a test happens within this time.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Awaits something that must not hang.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it hangs")
}

/// Waits until something is so.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    within(async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Runs a test whose files must not block. If one does, the test fails, although the thread that blocks never ends.
pub(crate) fn without_waiting(test: impl Future<Output = ()>) {
    struct Leave(Option<tokio::runtime::Runtime>);
    impl Drop for Leave {
        fn drop(&mut self) {
            self.0.take().unwrap().shutdown_background();
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Leave(Some(runtime)).0.as_ref().unwrap().block_on(test);
}

/// A directory with a root in it and something outside of it.
pub(crate) struct Place {
    scratch: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("root")).unwrap();
        std::fs::create_dir(scratch.path().join("outside")).unwrap();
        std::fs::write(scratch.path().join("outside/secret"), "secret").unwrap();
        Self { scratch }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.scratch.path().join("outside")
    }

    /// A path in the root.
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// A file in the root.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn files(&self) -> ConfinedFiles {
        ConfinedFiles::open(Roots::at(self.root())).unwrap()
    }

    pub(crate) fn options(&self) -> TerminalOptions {
        TerminalOptions::new(Roots::at(self.root()))
    }

    pub(crate) fn terminals(&self) -> Terminals {
        Terminals::new(self.options())
    }
}

pub(crate) async fn read(files: &ConfinedFiles, path: impl Into<PathBuf>) -> Result<String, FileError> {
    within(files.read(ReadText::new(path))).await
}

pub(crate) async fn lines(
    files: &ConfinedFiles,
    path: impl Into<PathBuf>,
    line: Option<u64>,
    limit: Option<u64>,
) -> Result<String, FileError> {
    within(files.read(ReadText::new(path).range(LineRange::new(line, limit)))).await
}

pub(crate) async fn write(
    files: &ConfinedFiles,
    path: impl Into<PathBuf>,
    content: impl Into<String>,
) -> Result<(), FileError> {
    within(files.write(WriteText::new(path, content))).await
}

/// A line for the shell.
pub(crate) fn sh(line: &str) -> TerminalCommand {
    TerminalCommand::new("/bin/sh").args(["-c", line])
}

/// A program in the root that is this shell script.
pub(crate) fn script(place: &Place, name: &str, line: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = place.file(name, format!("#!/bin/sh\n{line}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// Runs a line to its end and gives what it wrote.
pub(crate) async fn run(terminals: &Terminals, line: &str) -> String {
    let id = terminals.create("s", &sh(line)).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    terminals.output("s", &id, None).unwrap().text
}

/// Waits until a terminal has written a whole line that begins so, and gives the rest of it.
pub(crate) async fn line_after(terminals: &Terminals, id: &str, start: &str) -> String {
    let mut found = None;
    until(|| {
        let text = terminals.output("s", id, None).unwrap().text;
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        found = whole.filter_map(|line| line.strip_prefix(start)).map(|rest| rest.trim().to_owned()).next();
        found.is_some()
    })
    .await;
    found.unwrap()
}
