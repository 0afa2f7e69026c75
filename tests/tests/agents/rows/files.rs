//! Files and terminals.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use futures::future::BoxFuture;
use sandbox_agent_sdk::PermissionPolicy;
use sandbox_agent_sdk::tools::{
    ConfinedFiles, FileAccess, FileError, ReadText, Roots, TerminalOptions, TextFiles, WriteText,
};
use sdk_tests::{agents::RealAgent, model::WRITTEN};

use crate::{
    bench::{Answering, Bench, ask},
    cell::{Cell, Seen},
};

pub(super) async fn an_edit_shows_its_diff(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let answering = Answering::start(&connected.client, |request| {
        request.allow_once().expect("it can be allowed");
    });
    let session = connected.session(bench.new_session()).await;
    let path = bench.in_project("new.txt");
    let log = ask(&session, &format!("write {}", path.display())).await;
    log.ended();
    assert_eq!(fs::read_to_string(&path).expect("the file"), WRITTEN);
    let asked = answering.requests();
    let in_request = asked.iter().any(|request| {
        let call = request.tool_call();
        call.is_some_and(|call| {
            call.content.iter().any(|content| matches!(content, sandbox_agent_sdk::Content::Diff { .. }))
        })
    });
    let path = path.display().to_string();
    let in_call = log
        .diffs()
        .iter()
        .any(|(file, text)| path.ends_with(file.as_str()) && text.trim_end() == WRITTEN.trim_end());
    match (asked.len(), in_request, in_call) {
        (1, true, true) => Seen::note("in the permission and in the tool call"),
        (1, true, false) => Seen::note("in the permission only"),
        (1, false, true) => Seen::note("in the tool call only"),
        (0, _, true) => Seen::note("in the tool call; the agent asks for no permission"),
        other => panic!("{other:?}: {:?} {:?}", log.updates, asked),
    }
}

/// Files that say what was asked of them.
struct Watched {
    files: ConfinedFiles,
    asked: Arc<Mutex<Vec<&'static str>>>,
}

impl TextFiles for Watched {
    fn access(&self) -> FileAccess {
        self.files.access()
    }

    fn read(&self, what: ReadText) -> BoxFuture<'_, Result<String, FileError>> {
        self.asked.lock().unwrap().push("read");
        self.files.read(what)
    }

    fn write(&self, what: WriteText) -> BoxFuture<'_, Result<(), FileError>> {
        self.asked.lock().unwrap().push("write");
        self.files.write(what)
    }
}

pub(super) async fn confined_files_serve_the_agent(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let files = ConfinedFiles::open(Roots::at(bench.home.project())).expect("a directory");
    let asked: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let mut options = bench.options().files(Watched { files, asked: Arc::clone(&asked) });
    if cell.agent == RealAgent::Gemini {
        // It gives up creating a file that it cannot read. By default this is known by its name, which the released server
        // does not have for it.
        options = options.advertised_file_access(|_| FileAccess::Write);
    }
    let connected = bench.connect(options.permissions(PermissionPolicy::BypassPermissions)).await;
    let session = connected.session(bench.new_session()).await;
    let path = bench.in_project("confined.txt");
    ask(&session, &format!("write {}", path.display())).await.ended();
    assert_eq!(fs::read_to_string(&path).expect("the file"), WRITTEN);
    let asked = asked.lock().unwrap().clone();
    match cell.agent {
        RealAgent::Codex | RealAgent::Claude => {
            assert!(asked.is_empty(), "{asked:?}");
            Seen::cannot("never asks; writes by itself")
        }
        RealAgent::OpenCode | RealAgent::Gemini | RealAgent::Qwen => {
            assert!(asked.contains(&"write"), "{asked:?}");
            Seen::note(if asked.contains(&"read") {
                "reads and writes through the client"
            } else {
                "writes through the client"
            })
        }
    }
}

pub(super) async fn terminals_are_offered(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let options = bench.options().terminals(TerminalOptions::new(Roots::at(bench.home.project())));
    let connected = bench.connect(options.permissions(PermissionPolicy::BypassPermissions)).await;
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch terminal.txt && echo it-ran").await;
    assert!(log.ended().text().contains("it-ran"), "{}", log.text());
    assert!(bench.in_project("terminal.txt").exists());
    let used = log.updates.iter().any(|update| update.raw().to_string().contains("terminalId"));
    if used { Seen::Works } else { Seen::cannot("runs commands by itself") }
}
