//! Runs a command to completion.

use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Child,
    time::timeout,
};

use super::{
    registry::{Order, Processes, not_started, require_command},
    spawn::command,
};
use crate::problem::Problem;

/// How much is read at once.
const CHUNK_BYTES: usize = 8192;

/// A command to run.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Run {
    #[serde(flatten)]
    order: Order,
    #[serde(default)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    max_output_bytes: Option<usize>,
}

/// The beginning of a stream.
#[derive(Debug, Default)]
struct Captured {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Captured {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Kills a command's process group if it is still running.
struct Guard {
    group: Option<Pid>,
}

impl Guard {
    fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            // The leader was not waited for, so its id was not reused.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) async fn run(processes: &Processes, run: Run) -> Result<Value, Problem> {
    require_command(&run.order)?;
    let limits = processes.limits();
    let wanted = run.timeout_ms.filter(|limit| *limit > 0).unwrap_or(limits.default_run_timeout_ms);
    let time = Duration::from_millis(wanted.min(limits.max_run_timeout_ms));
    let room = run.max_output_bytes.unwrap_or(limits.max_output_bytes).min(limits.max_output_bytes);
    let directory = processes.directory(run.order.cwd.as_deref())?;
    let mut command = command(&run.order, &directory, processes.root.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child =
        command.process_group(0).kill_on_drop(true).spawn().map_err(|error| not_started(&error))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let mut guard = Guard { group };
    let (mut stdout, mut stderr) = (Captured::default(), Captured::default());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let reading = async {
        tokio::join!(capture(out, &mut stdout, room), capture(err, &mut stderr, room));
        exited(&mut child).await
    };
    let (status, timed_out) = match timeout(time, reading).await {
        Ok(status) => (status, false),
        Err(_) => {
            guard.kill();
            (exited(&mut child).await, true)
        }
    };
    guard.group = None;
    let status = status.ok().filter(|status| status.signal().is_none() && !timed_out);
    Ok(json!({
        "exitCode": status.and_then(|status| status.code()),
        "timedOut": timed_out,
        "stdout": stdout.text(),
        "stderr": stderr.text(),
        "stdoutTruncated": stdout.truncated,
        "stderrTruncated": stderr.truncated,
        "durationMs": u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    }))
}

async fn exited(child: &mut Child) -> std::io::Result<ExitStatus> {
    child.wait().await
}

/// Reads to the end and keeps the beginning.
async fn capture(stream: Option<impl AsyncRead + Unpin>, captured: &mut Captured, room: usize) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        let fitting = length.min(room.saturating_sub(captured.bytes.len()));
        captured.bytes.extend_from_slice(&buffer[..fitting]);
        captured.truncated |= fitting < length;
    }
}
