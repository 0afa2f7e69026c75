//! The requests about processes.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::follow::{Follow, FollowOptions};
use super::info::{LogEntry, LogPage, ProcessConfig, ProcessInfo, ProcessList, ProcessOwner, RunOutput};
use super::request::{CreateProcess, LogQuery, RunProcess};
use crate::Error;
use crate::control::FileReader;
use crate::control::http::{Call, Http};
use crate::control::route::Route;
use crate::control::terminal::{ProcessTerminal, TerminalSize};
use crate::control::upload::Upload;

const PROCESSES: &str = "/v1/processes";

/// The longest run time that a server allows by default.
const LONGEST_RUN: Duration = Duration::from_secs(300);

/// How long servers wait after SIGTERM by default.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// How long servers wait after SIGKILL by default.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// How much input one request carries; servers accept 64 KiB by default.
const INPUT_BYTES: usize = 32 * 1024;

/// The end-of-input character of a terminal, effective at the beginning of a line.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

/// Runs processes on the server's machine. Cheap to clone; needs no connection.
///
/// A process belongs to the server and continues after the client disconnects. The server stores the records and the
/// output of exited processes until they are [deleted](Self::delete).
///
/// # Errors
/// If the id is unknown, the error's [`is_not_found`](Error::is_not_found) is true. If the state of the
/// process does not allow the call, the error is [`Error::Http`] with status 409.
///
/// ```no_run
/// # async fn example(server: sandbox_agent_sdk::control::ControlPlane) -> Result<(), sandbox_agent_sdk::Error> {
/// use futures::StreamExt;
/// use sandbox_agent_sdk::control::processes::{CreateProcess, FollowEvent, FollowOptions, LossyText};
///
/// let build = server.processes().create(CreateProcess::new("make").cwd("/work")).await?;
/// let mut output = server.processes().follow(&build.id, FollowOptions::new());
/// let mut text = LossyText::new();
/// while let Some(event) = output.next().await {
///     match event? {
///         FollowEvent::Output(entry) => print!("{}", text.push(&entry.data)),
///         FollowEvent::Exited(process) => println!("{:?}", process.exit()),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Processes {
    pub(super) http: Http,
}

#[derive(Serialize)]
struct Input {
    data: String,
    encoding: &'static str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InputWritten {
    bytes_written: u64,
}

impl Processes {
    pub(in crate::control) fn new(http: Http) -> Self {
        Self { http }
    }

    /// Returns the limits of the server's processes.
    pub fn config(&self) -> BoxFuture<'static, Result<ProcessConfig, Error>> {
        let route = Route::new("/v1/processes/config");
        self.http.value(Ok(Call::new("get process config", Method::GET, route)))
    }

    /// Replaces the limits of the server's processes, for all clients.
    pub fn set_config(&self, config: &ProcessConfig) -> BoxFuture<'static, Result<ProcessConfig, Error>> {
        let route = Route::new("/v1/processes/config");
        self.http.value(Call::new("set process config", Method::POST, route).json(config))
    }

    /// Runs a command to completion and returns its output.
    ///
    /// A non-zero exit code and a timeout are results, not errors. On a timeout the server kills only the
    /// command itself. A child process that holds the output open delays the response.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no response arrives within the command's timeout (300 s by default) plus
    /// [`ControlTimeouts::response`](crate::control::ControlTimeouts::response). The command may have run.
    pub fn run(&self, command: RunProcess) -> BoxFuture<'static, Result<RunOutput, Error>> {
        let limit = command.timeout.unwrap_or(LONGEST_RUN) + self.http.timeouts().response;
        let call = Call::new("run process", Method::POST, Route::new("/v1/processes/run"));
        self.http.value(call.response_timeout(Some(limit)).json(&command))
    }

    /// Starts a process and returns immediately.
    pub fn create(&self, process: CreateProcess) -> BoxFuture<'static, Result<ProcessInfo, Error>> {
        self.http.value(Call::new("create process", Method::POST, Route::new(PROCESSES)).json(&process))
    }

    /// Lists all processes, running and exited, in order of creation.
    pub fn list(&self) -> BoxFuture<'static, Result<Vec<ProcessInfo>, Error>> {
        self.listed(Route::new(PROCESSES))
    }

    /// Lists the processes of one owner.
    pub fn list_of(&self, owner: &ProcessOwner) -> BoxFuture<'static, Result<Vec<ProcessInfo>, Error>> {
        self.listed(Route::new(PROCESSES).query("owner", owner.as_str()))
    }

    fn listed(&self, route: Route) -> BoxFuture<'static, Result<Vec<ProcessInfo>, Error>> {
        let list = self.http.value::<ProcessList>(Ok(Call::new("list processes", Method::GET, route)));
        list.map(|list| {
            let mut processes = list?.processes;
            // Released servers sort by the text of the id, which puts `proc_10` before `proc_2`.
            processes.sort_by_key(|process| (process.created_at_ms, process.id.len(), process.id.clone()));
            Ok(processes)
        })
        .boxed()
    }

    /// Returns one process.
    pub fn get(&self, id: &str) -> BoxFuture<'static, Result<ProcessInfo, Error>> {
        self.http.value(process(id).map(|route| Call::new("get process", Method::GET, route)))
    }

    /// Sends SIGTERM and waits for at most two seconds. Does nothing if the process has exited.
    ///
    /// The result shows whether the process has exited. A process that ignores the signal keeps running.
    pub fn stop(&self, id: &str) -> BoxFuture<'static, Result<ProcessInfo, Error>> {
        self.stop_within(id, STOP_WAIT)
    }

    /// Sends SIGTERM and waits for at most `wait`.
    pub fn stop_within(&self, id: &str, wait: Duration) -> BoxFuture<'static, Result<ProcessInfo, Error>> {
        self.signal("stop process", id, "stop", wait)
    }

    /// Sends SIGKILL and waits for at most one second. Does nothing if the process has exited.
    pub fn kill(&self, id: &str) -> BoxFuture<'static, Result<ProcessInfo, Error>> {
        self.kill_within(id, KILL_WAIT)
    }

    /// Sends SIGKILL and waits for at most `wait`.
    pub fn kill_within(&self, id: &str, wait: Duration) -> BoxFuture<'static, Result<ProcessInfo, Error>> {
        self.signal("kill process", id, "kill", wait)
    }

    fn signal(
        &self,
        what: &'static str,
        id: &str,
        verb: &str,
        wait: Duration,
    ) -> BoxFuture<'static, Result<ProcessInfo, Error>> {
        let limit = wait + self.http.timeouts().response;
        let wait = wait.as_millis().to_string();
        let route =
            process(id).and_then(|route| route.segment(verb)).map(|route| route.query("waitMs", &wait));
        self.http.value(route.map(|route| Call::new(what, Method::POST, route).response_timeout(Some(limit))))
    }

    /// Deletes the record of an exited process and its output.
    ///
    /// # Errors
    /// [`Error::Http`] with status 409 if the process is running.
    pub fn delete(&self, id: &str) -> BoxFuture<'static, Result<(), Error>> {
        self.http.done(process(id).map(|route| Call::new("delete process", Method::DELETE, route)))
    }

    /// Returns the output that the server has stored.
    pub fn logs(&self, id: &str, query: LogQuery) -> BoxFuture<'static, Result<Vec<LogEntry>, Error>> {
        let route = logs(id, &query);
        let page =
            self.http.value::<LogPage>(route.map(|route| Call::new("get process logs", Method::GET, route)));
        page.map(|page| page.map(|page| page.entries)).boxed()
    }

    /// Streams the output until the process exits and its output is drained.
    ///
    /// Sends nothing before the stream is polled.
    pub fn follow(&self, id: &str, options: FollowOptions) -> Follow {
        Follow::new(self.clone(), id.to_owned(), options)
    }

    /// Opens the server's event stream of log entries after a sequence number.
    pub(super) fn log_events(&self, id: &str, since: u64) -> BoxFuture<'static, Result<FileReader, Error>> {
        let route = logs(id, &LogQuery::new().since(since)).map(|route| route.flag("follow", true));
        let body =
            self.http.body(route.map(|route| {
                Call::new("follow process logs", Method::GET, route).accept("text/event-stream")
            }));
        body.map(|body| body.map(FileReader::new)).boxed()
    }

    /// Writes to the standard input or terminal of a process. Returns the number of bytes written.
    ///
    /// Sends all input in one request. Use [`send_input_stream`](Self::send_input_stream) for larger input.
    ///
    /// # Errors
    /// [`Error::PayloadTooLarge`] if the input exceeds the server's
    /// [limit](ProcessConfig::max_input_bytes_per_request), 64 KiB by default. Nothing is written.
    pub fn send_input(&self, id: &str, input: impl AsRef<[u8]>) -> BoxFuture<'static, Result<u64, Error>> {
        let input = Input { data: STANDARD.encode(input.as_ref()), encoding: "base64" };
        let call = process(id)
            .and_then(|route| route.segment("input"))
            .and_then(|route| Call::new("send process input", Method::POST, route).json(&input));
        self.http
            .value::<InputWritten>(call)
            .map(|written| written.map(|written| written.bytes_written))
            .boxed()
    }

    /// Writes a stream of any size to a process. Returns the number of bytes written.
    ///
    /// The next chunk is sent after the previous one was written: a process that does not read its input
    /// applies backpressure. A request that takes longer than
    /// [`ControlTimeouts::response`](crate::control::ControlTimeouts::response) fails. After a failure, part of
    /// the input may have been written.
    pub fn send_input_stream(
        &self,
        id: &str,
        input: impl Into<Upload>,
    ) -> BoxFuture<'static, Result<u64, Error>> {
        let (processes, id, upload) = (self.clone(), id.to_owned(), input.into());
        Box::pin(async move {
            let (mut body, progress) = upload.start();
            let mut written = 0;
            while let Some(piece) = body.next().await {
                let mut piece: Bytes = piece.map_err(|error| Error::Local {
                    what: "send process input".to_owned(),
                    source: progress.failure().unwrap_or_else(|| std::sync::Arc::new(error)),
                })?;
                while piece.has_remaining() {
                    let part = piece.split_to(piece.len().min(INPUT_BYTES));
                    written += processes.send_input(&id, part).await?;
                }
            }
            Ok(written)
        })
    }

    /// Ends the input of a process in a terminal.
    ///
    /// Sends the end-of-transmission character (Ctrl-D). A program that reads lines treats it as the end of input at
    /// the beginning of a line.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a process without a terminal: no released server can close a pipe.
    pub fn end_input(&self, id: &str) -> BoxFuture<'static, Result<(), Error>> {
        let (processes, id) = (self.clone(), id.to_owned());
        Box::pin(async move {
            if !processes.get(&id).await?.tty {
                return Err(Error::Unsupported { method: "end process input".to_owned() });
            }
            processes.send_input(&id, END_OF_TRANSMISSION).await.map(drop)
        })
    }

    /// Sets the size of the terminal of a process.
    pub fn resize_terminal(
        &self,
        id: &str,
        size: TerminalSize,
    ) -> BoxFuture<'static, Result<TerminalSize, Error>> {
        let route =
            process(id).and_then(|route| route.segment("terminal")).and_then(|route| route.segment("resize"));
        self.http.value(route.and_then(|route| Call::new("resize terminal", Method::POST, route).json(&size)))
    }

    /// Attaches to the terminal of a process over a WebSocket.
    ///
    /// Earlier output is not replayed; [`logs`](Self::logs) returns it. Several clients can attach to one
    /// terminal.
    pub fn connect_terminal(&self, id: &str) -> BoxFuture<'static, Result<ProcessTerminal, Error>> {
        let route =
            process(id).and_then(|route| route.segment("terminal")).and_then(|route| route.segment("ws"));
        ProcessTerminal::connect(self.http.clone(), route).boxed()
    }
}

fn process(id: &str) -> Result<Route, Error> {
    Route::new(PROCESSES).segment(id)
}

fn logs(id: &str, query: &LogQuery) -> Result<Route, Error> {
    let mut route = process(id)?.segment("logs")?;
    if let Some(stream) = &query.stream {
        route = route.query("stream", stream.as_str());
    }
    if let Some(tail) = query.tail {
        route = route.query("tail", &tail.to_string());
    }
    if let Some(since) = query.since {
        route = route.query("since", &since.to_string());
    }
    Ok(route)
}
