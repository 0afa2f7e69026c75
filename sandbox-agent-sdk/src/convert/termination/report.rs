//! Reports of an end, and how they are merged.

use acp_http_client as wire;
use serde_json::{Map, Value};

use super::{EndReason, StderrOutput, TerminatedBy, TerminationInfo, reason_of_exit};
use crate::convert::fields::Fields;

/// The prefix of problem types of Sandbox Agent servers.
const PROBLEM_PREFIX: &str = "urn:sandbox-agent:error:";

/// The source of a report, from the least to the most reliable. If two sources disagree, the more reliable
/// one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// A write to the agent failed. The agent is gone; when and why is unknown.
    FailedWrite,
    /// The notification of the process's exit: a code without a message.
    ExitNotice,
    /// The response to a call that was pending at the exit: a code and the last lines of stderr.
    Problem,
    /// The server's full report of the session's end.
    Ended,
}

type Said<T> = Option<(Source, T)>;

/// One report of how an agent or a session ended. Every part of it may be missing.
///
/// Servers report an end in pieces and in any order: a notification on the event stream, the late failure of
/// a pending call, an entry in the session's info. Each piece becomes a report. [`merge`](Self::merge) joins
/// reports, and [`into_info`](Self::into_info) returns what is known so far. For reports of different kinds
/// the order of merging does not matter; of two reports of the same kind the first one counts.
///
/// ```
/// use sandbox_agent_sdk::termination::TerminationReport;
/// use serde_json::json;
///
/// let notice = TerminationReport::from_agent_exited(&json!({"success": false, "code": 3}));
/// let problem = TerminationReport::from_problem(&json!({
///     "type": "urn:sandbox-agent:error:agent_process_exited", "status": 500, "agent": "mock",
///     "details": {"exitCode": 3, "stderr": "boom"}})).unwrap();
/// assert_eq!(notice.merge(problem).into_info().to_string(), "error, exit code 3\nstderr:\n  boom");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use]
pub struct TerminationReport {
    session_id: Said<String>,
    agent: Said<String>,
    reason: Said<EndReason>,
    terminated_by: Said<TerminatedBy>,
    message: Said<String>,
    exit_code: Said<i64>,
    signal: Said<String>,
    stderr: Said<StderrOutput>,
    success: Said<bool>,
    other: Said<Map<String, Value>>,
    /// Whether this client requested the end.
    requested: bool,
    /// Whether the process has exited.
    exited: bool,
    /// Whether a call was pending when the process exited. Without an exit code, this indicates a signal.
    unanswered: bool,
}

impl TerminationReport {
    /// Creates the report of an end that this client requested.
    ///
    /// Merge it only if the request came before the end. An exit after the request counts as requested, regardless of
    /// its exit code. An exit before the request was not requested.
    pub fn requested() -> Self {
        Self { requested: true, ..Self::default() }
    }

    /// Parses the parameters of a `_sandboxagent/session/ended` notification; `None` if they are not an
    /// object.
    ///
    /// If `data` is missing, its fields are read from the parameters themselves.
    pub fn from_session_ended(params: &Value) -> Option<Self> {
        let mut fields = Fields::new(params.as_object()?.clone());
        let session_id = fields.string(&["sessionId", "session_id"]);
        let data = fields.take(&["data"], |data| data.as_object().cloned());
        let info = TerminationInfo::from(data.unwrap_or_else(|| fields.rest()));
        Some(Self { session_id: session_id.map(|id| (Source::Ended, id)), ..Self::from_info(info) })
    }

    /// Parses the parameters of the released server's `_adapter/agent_exited` notification. Invalid
    /// parameters still report an exit.
    pub fn from_agent_exited(params: &Value) -> Self {
        let mut fields = Fields::new(params.as_object().cloned().unwrap_or_default());
        let by = |source| move |value| (source, value);
        Self {
            success: fields.bool(&["success"]).map(|success| (Source::ExitNotice, success)),
            exit_code: fields.integer(&["code", "exitCode", "exit_code"]).map(by(Source::ExitNotice)),
            exited: true,
            ..Self::default()
        }
    }

    /// Parses the problem in a server's response. Returns `None` if it does not report the exit of an agent.
    ///
    /// It recognises `agent_process_exited`, and the failed write to the agent's stdin that the released server
    /// reports for every call after the agent has exited.
    pub fn from_problem(problem: &Value) -> Option<Self> {
        let text = |name: &str| problem.get(name).and_then(Value::as_str);
        let detail = |name: &str| problem.get("details").and_then(|details| details.get(name));
        let kind = text("type").unwrap_or_default();
        let message = text("detail").map(str::to_owned);
        let title = if kind == "about:blank" { text("title").unwrap_or_default() } else { "" };
        match (kind.strip_prefix(PROBLEM_PREFIX).unwrap_or_default(), title) {
            ("agent_process_exited", _) | (_, "agent_exited") => {
                let (code, stderr) = text("detail").map(parse_exit_message).unwrap_or_default();
                let stderr = detail("stderr").and_then(Value::as_str).or(stderr);
                Some(Self {
                    agent: text("agent").map(|agent| (Source::Problem, agent.to_owned())),
                    exit_code: detail("exitCode")
                        .and_then(Value::as_i64)
                        .or(code)
                        .map(|code| (Source::Problem, code)),
                    stderr: stderr
                        .and_then(StderrOutput::from_problem_text)
                        .map(|stderr| (Source::Problem, stderr)),
                    message: message.map(|message| (Source::Problem, message)),
                    exited: true,
                    unanswered: true,
                    ..Self::default()
                })
            }
            ("stream_error", _) if message.as_deref().is_some_and(|text| text.contains("agent stdin")) => {
                Some(Self {
                    message: message.map(|message| (Source::FailedWrite, message)),
                    ..Self::default()
                })
            }
            (_, "write_failed") => Some(Self {
                message: message.map(|message| (Source::FailedWrite, message)),
                ..Self::default()
            }),
            _ => None,
        }
    }

    /// Parses the error data of a failed call; `None` if it has no `terminationInfo`.
    ///
    /// Servers add it if the end of the session made the call fail.
    pub fn from_error_data(data: &Value) -> Option<Self> {
        TerminationInfo::from_error_data(data).map(Self::from_info)
    }

    /// Creates a report from a complete termination, such as the one in a session's info.
    pub fn from_info(info: TerminationInfo) -> Self {
        fn ended<T>(value: T) -> Said<T> {
            Some((Source::Ended, value))
        }
        Self {
            reason: Some(info.reason).filter(|reason| *reason != EndReason::Unknown).and_then(ended),
            terminated_by: Some(info.terminated_by).filter(|by| *by != TerminatedBy::Unknown).and_then(ended),
            message: info.message.and_then(ended),
            exit_code: info.exit_code.and_then(ended),
            signal: info.signal.and_then(ended),
            stderr: info.stderr.and_then(ended),
            other: Some(info.other).filter(|other| !other.is_empty()).and_then(ended),
            requested: info.requested,
            ..Self::default()
        }
    }

    /// Reads the report in the error of a call that failed because of the end.
    pub(crate) fn from_wire_error(error: &wire::Error) -> Option<Self> {
        if let wire::Error::Rpc { error: rpc, .. } = error {
            return Self::from_error_data(rpc.data.as_ref()?);
        }
        let body: Value = wire::json::from_str(&error.http()?.body).ok()?;
        Self::from_problem(&body)
    }

    /// Merges two reports of the same end.
    pub fn merge(self, other: Self) -> Self {
        Self {
            session_id: better(self.session_id, other.session_id),
            agent: better(self.agent, other.agent),
            reason: better(self.reason, other.reason),
            terminated_by: better(self.terminated_by, other.terminated_by),
            message: better(self.message, other.message),
            exit_code: better(self.exit_code, other.exit_code),
            signal: better(self.signal, other.signal),
            stderr: better(self.stderr, other.stderr),
            success: better(self.success, other.success),
            other: better(self.other, other.other),
            requested: self.requested || other.requested,
            exited: self.exited || other.exited,
            unanswered: self.unanswered || other.unanswered,
        }
    }

    /// Adds the details that only the later report has. It does not turn the end into a requested one.
    pub(crate) fn with_details(self, later: Self) -> Self {
        let requested = self.requested;
        Self { requested, ..self.merge(later) }
    }

    /// Converts the report to a [`TerminationInfo`] with everything known so far.
    ///
    /// A requested end is `terminated`, unless the server reports that the agent had already completed.
    #[must_use]
    pub fn into_info(self) -> TerminationInfo {
        let (reason, terminated_by) = (self.end_reason(), self.author());
        TerminationInfo {
            reason,
            terminated_by,
            message: said(self.message),
            exit_code: said(self.exit_code),
            signal: said(self.signal),
            stderr: said(self.stderr),
            requested: self.requested,
            other: said(self.other).unwrap_or_default(),
        }
    }

    /// Returns the session that ended; `None` if the agent ended with all its sessions.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_ref().map(|(_, id)| id.as_str())
    }

    /// Returns the agent that exited.
    #[must_use]
    pub fn agent(&self) -> Option<&str> {
        self.agent.as_ref().map(|(_, agent)| agent.as_str())
    }

    /// Returns whether the report includes stderr output. If not, a later report may add it.
    #[must_use]
    pub fn has_stderr(&self) -> bool {
        self.stderr.is_some()
    }

    /// Whether the report only shows that a write to the agent failed. The agent did not receive the message.
    pub(crate) fn is_failed_write(&self) -> bool {
        !self.exited && matches!(self.message, Some((Source::FailedWrite, _)))
    }

    /// Returns whether the server reported the end completely, so that no later report adds anything.
    #[must_use]
    pub fn is_account(&self) -> bool {
        self.reason.as_ref().is_some_and(|(source, _)| *source == Source::Ended)
    }

    fn end_reason(&self) -> EndReason {
        match &self.reason {
            Some((_, EndReason::Error)) if self.requested => EndReason::Terminated,
            Some((_, reason)) => reason.clone(),
            None if self.requested => EndReason::Terminated,
            None => self.reason_of_process(),
        }
    }

    /// Derives the reason from the exit of the process.
    fn reason_of_process(&self) -> EndReason {
        let code = self.exit_code.map(|(_, code)| code);
        match reason_of_exit(code, self.signal.is_some()) {
            EndReason::Unknown => match self.success {
                Some((_, true)) => EndReason::Completed,
                Some((_, false)) => EndReason::Error,
                None if self.unanswered => EndReason::Error,
                None => EndReason::Unknown,
            },
            reason => reason,
        }
    }

    fn author(&self) -> TerminatedBy {
        match (&self.reason, &self.terminated_by) {
            // The agent exited because the server stopped it at our request.
            (Some((_, EndReason::Error)), _) if self.requested => TerminatedBy::Daemon,
            (_, Some((_, author))) => author.clone(),
            _ if self.requested => TerminatedBy::Daemon,
            _ if self.exited => TerminatedBy::Agent,
            _ => TerminatedBy::Unknown,
        }
    }
}

/// Extracts the exit code and stderr from the message of the released adapter.
///
/// The format is `agent process exited before responding (exit_code: Some(3), stderr: …)`.
fn parse_exit_message(detail: &str) -> (Option<i64>, Option<&str>) {
    let Some(exit) = detail.split_once("(exit_code: ").and_then(|(_, exit)| exit.strip_suffix(')')) else {
        return (None, None);
    };
    let (code, stderr) = match exit.split_once(", stderr: ") {
        Some((code, stderr)) => (code, Some(stderr)),
        None => (exit, None),
    };
    let code = code.strip_prefix("Some(").and_then(|code| code.strip_suffix(')'));
    (code.and_then(|code| code.parse().ok()), stderr)
}

/// Returns the value from the more reliable source, or the first if both are equally reliable.
fn better<T>(first: Said<T>, second: Said<T>) -> Said<T> {
    match (first, second) {
        (Some(first), Some(second)) if second.0 > first.0 => Some(second),
        (None, second) => second,
        (first, _) => first,
    }
}

fn said<T>(said: Said<T>) -> Option<T> {
    said.map(|(_, value)| value)
}
