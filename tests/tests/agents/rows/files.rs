//! Files and terminals.

use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::future::BoxFuture;
use sandbox_agent_sdk::requests::AgentRequest;
use sandbox_agent_sdk::tools::{
    ConfinedFiles, FileAccess, FileError, ReadText, Roots, TerminalOptions, TextFiles, WriteText,
};
use sandbox_agent_sdk::{ClientOptions, Content, PermissionPolicy, PermissionRequest};
use sdk_tests::{
    agents::RealAgent,
    model::{EDITED, WRITTEN},
};

use crate::{
    bench::{Answering, Bench, TurnLog, ask},
    cell::{Cell, Seen},
    sender::Sent,
};

pub(super) async fn a_new_file_shows_its_diff(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let path = bench.in_project("new.txt");
    let (log, asked) = changed(&bench, &[format!("write {}", path.display())]).await;
    assert_eq!(fs::read_to_string(&path).expect("the file"), WRITTEN);
    let is_new = |old: Option<&str>, new: &str| {
        old.unwrap_or_default().is_empty() && new.trim_end() == WRITTEN.trim_end()
    };
    shown(&path, &log, &asked, is_new)
}

pub(super) async fn an_edit_shows_its_diff(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let path = bench.in_project("existing.txt");
    let (old, new) = EDITED;
    let text = |line: &str| format!("first\n{line}\nlast\n");
    fs::write(&path, text(old)).expect("a file");
    // Some agents edit only files that they have read.
    let prompts = ["read", "edit"].map(|word| format!("{word} {}", path.display()));
    let (log, asked) = changed(&bench, &prompts).await;
    assert_eq!(fs::read_to_string(&path).expect("the file"), text(new), "{:?}", log.updates);
    // Some agents show the whole file, others the changed lines.
    let is_edit = |before: Option<&str>, after: &str| {
        before.is_some_and(|text| text.contains(old) && !text.contains(new))
            && after.contains(new)
            && !after.contains(old)
    };
    shown(&path, &log, &asked, is_edit)
}

/// Runs turns whose permissions are allowed, and returns the last one with the permissions that it asked for.
async fn changed(bench: &Bench, prompts: &[String]) -> (TurnLog, Vec<PermissionRequest>) {
    let connected = bench.client().await;
    let answering = Answering::start(&connected.client, |request| {
        request.allow_once().expect("it can be allowed");
    });
    let session = connected.session(bench.new_session()).await;
    let (last, earlier) = prompts.split_last().expect("a prompt");
    for prompt in earlier {
        ask(&session, prompt).await.ended();
    }
    let before = answering.requests().len();
    let log = ask(&session, last).await;
    log.ended();
    (log, answering.requests().split_off(before))
}

/// Where a diff of this file is shown whose texts before and after are right.
fn shown(
    path: &Path,
    log: &TurnLog,
    asked: &[PermissionRequest],
    is_right: impl Fn(Option<&str>, &str) -> bool,
) -> Seen {
    let is_right = |content: &Content| match content {
        Content::Diff { path: file, old_text, new_text, .. } => {
            path.ends_with(file) && is_right(old_text.as_deref(), new_text)
        }
        _ => false,
    };
    let calls = asked.iter().filter_map(PermissionRequest::tool_call);
    let in_request = calls.flat_map(|call| &call.content).any(is_right);
    let in_call = log.tool_contents().any(is_right);
    match (asked.len(), in_request, in_call) {
        (1, true, true) => Seen::note("in the permission and in the tool call"),
        (1, true, false) => Seen::note("in the permission only"),
        (1, false, true) => Seen::note("in the tool call only"),
        (0, _, true) => Seen::note("in the tool call; the agent asks for no permission"),
        other => {
            panic!("{other:?}: {:?} {asked:?}", log.updates.iter().map(|it| it.raw()).collect::<Vec<_>>())
        }
    }
}

/// Files that record what was requested of them.
struct Watched {
    files: ConfinedFiles,
    asked: Asked,
}

/// The requests so far: what was requested, and whether it was done.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<(&'static str, bool)>>>);

impl Asked {
    fn add(&self, what: &'static str, is_done: bool) {
        self.0.lock().unwrap().push((what, is_done));
    }

    fn take(&self) -> Vec<(&'static str, bool)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn has(&self, what: &str) -> bool {
        self.0.lock().unwrap().iter().any(|(name, _)| *name == what)
    }
}

impl TextFiles for Watched {
    fn access(&self) -> FileAccess {
        self.files.access()
    }

    fn read(&self, what: ReadText) -> BoxFuture<'_, Result<String, FileError>> {
        Box::pin(async {
            let read = self.files.read(what).await;
            self.asked.add("read", read.is_ok());
            read
        })
    }

    fn write(&self, what: WriteText) -> BoxFuture<'_, Result<(), FileError>> {
        Box::pin(async {
            let written = self.files.write(what).await;
            self.asked.add("write", written.is_ok());
            written
        })
    }
}

/// A client that gives the agent the files of the project, and allows everything else.
fn with_files(bench: &Bench) -> (ClientOptions, Asked) {
    let files = ConfinedFiles::open(Roots::at(bench.home.project())).expect("a directory");
    let asked = Asked::default();
    let options = bench.options().files(Watched { files, asked: asked.clone() });
    (options.permissions(PermissionPolicy::BypassPermissions), asked)
}

/// By default only writing is advertised to an agent with the name of gemini, which does not create a file that it cannot
/// read. The released server has no agent of this name.
fn as_named(bench: &Bench, options: ClientOptions) -> ClientOptions {
    match bench.cell.agent == RealAgent::Gemini && bench.is_released() {
        true => options.advertised_file_access(|_| FileAccess::Write),
        false => options,
    }
}

pub(super) async fn confined_files_serve_the_agent(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let (options, asked) = with_files(&bench);
    let connected = bench.connect(as_named(&bench, options)).await;
    let session = connected.session(bench.new_session()).await;
    let path = bench.in_project("confined.txt");
    ask(&session, &format!("write {}", path.display())).await.ended();
    assert_eq!(fs::read_to_string(&path).expect("the file"), WRITTEN);
    match cell.agent {
        RealAgent::Codex | RealAgent::Claude => {
            assert_eq!(asked.take(), []);
            Seen::cannot("never asks; writes by itself")
        }
        RealAgent::OpenCode | RealAgent::Gemini | RealAgent::Qwen => {
            assert!(asked.has("write"), "{:?}", asked.take());
            Seen::note(if asked.has("read") {
                "reads and writes through the client"
            } else {
                "writes through the client"
            })
        }
    }
}

/// What an agent does if the client refuses to write a file: outside the directories of the client's files, and a
/// protected name inside them.
pub(super) async fn a_write_that_the_client_refuses(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let (options, asked) = with_files(&bench);
    let connected = bench.connect(as_named(&bench, options)).await;
    let session = connected.session(bench.new_session()).await;
    let outside = bench.home.project().with_file_name("outside.txt");
    let mut results = Vec::new();
    for (where_, path) in [("outside", outside), ("protected", bench.in_project(".envrc"))] {
        ask(&session, &format!("write {}", path.display())).await.ended();
        let requests = asked.take();
        let writes: Vec<bool> =
            requests.iter().filter(|(what, _)| *what == "write").map(|(_, is_done)| *is_done).collect();
        assert!(!writes.contains(&true), "the client wrote {}", path.display());
        let is_written = path.exists();
        let text = match (writes.is_empty(), is_written) {
            (true, true) => "never asks; writes by itself",
            (true, false) => "never asks, and does not write",
            (false, true) => "asks, is refused, and writes by itself",
            (false, false) => "asks, is refused, and does not write",
        };
        results.push((where_, text, is_written));
    }
    let text = match &results[..] {
        [(_, one, _), (_, other, _)] if one == other => (*one).to_owned(),
        all => all.iter().map(|(place, text, _)| format!("{place}: {text}")).collect::<Vec<_>>().join("; "),
    };
    match results.iter().any(|(.., is_written)| *is_written) {
        true => Seen::cannot(text),
        false => Seen::note(text),
    }
}

pub(super) async fn confined_files_serve_a_read(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let (options, asked) = with_files(&bench);
    // By default only writing is advertised to gemini.
    let connected = bench.connect(options.advertised_file_access(|_| FileAccess::ReadWrite)).await;
    let session = connected.session(bench.new_session()).await;
    let path = bench.in_project("readable.txt");
    fs::write(&path, "what the file says\n").expect("a file");
    let log = ask(&session, &format!("read {}", path.display())).await;
    assert!(log.ended().text().contains("what the file says"), "{}", log.text());
    match asked.has("read") {
        true => Seen::note("reads through the client"),
        false => Seen::cannot("never asks; reads by itself"),
    }
}

pub(super) async fn terminals_are_offered(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let advertised = Sent::with(r#""terminal":true"#);
    let options = bench.options().terminals(TerminalOptions::new(Roots::at(bench.home.project())));
    let options = options.permissions(PermissionPolicy::BypassPermissions).http_sender(advertised.clone());
    let connected = bench.connect(options).await;
    assert_eq!(advertised.count(), 1, "the client does not advertise terminals");
    let created = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&created);
    let is_create = move |request: &AgentRequest| {
        if request.method() == "terminal/create" {
            count.fetch_add(1, Ordering::SeqCst);
        }
        // It only counts.
        false
    };
    let counting = connected.client.requests().register_outermost(is_create, AgentRequest::forward);
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch terminal.txt && echo it-ran").await;
    assert!(log.ended().text().contains("it-ran"), "{}", log.text());
    assert!(bench.in_project("terminal.txt").exists());
    drop(counting);
    match created.load(Ordering::SeqCst) {
        0 => Seen::cannot("runs commands by itself"),
        _ => Seen::Works,
    }
}
