use serde_json::{Map, Value, json};

use crate::agent::{Exit, StderrSummary};

/// Why and how a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Termination {
    reason: &'static str,
    terminated_by: &'static str,
    /// Present only for an end by error.
    failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    message: String,
    exit_code: Option<i32>,
    signal: Option<String>,
    stderr: StderrSummary,
    /// How many of the last lines of stderr belong to the running turn; `None` without a turn.
    turn_lines: Option<u64>,
}

/// The two spellings of the members.
#[derive(Debug, Clone, Copy)]
enum Spelling {
    Snake,
    Camel,
}

impl Termination {
    /// Creates the end after an agent's exit: `completed` with code 0, `error` otherwise. `turn_lines` is how many of the
    /// last lines of stderr were written since the prompt of the running turn.
    pub(crate) fn by_exit(exit: &Exit, turn_lines: Option<u64>) -> Self {
        if exit.status.success() {
            return Self { reason: "completed", terminated_by: "agent", failure: None };
        }
        let failure = Failure {
            message: exit_message(exit),
            exit_code: exit.status.code(),
            signal: exit.status.signal_name(),
            stderr: exit.stderr.clone(),
            turn_lines,
        };
        Self { reason: "error", terminated_by: "agent", failure: Some(failure) }
    }

    /// Creates the end that a client requested.
    pub(crate) fn by_request() -> Self {
        Self { reason: "terminated", terminated_by: "daemon", failure: None }
    }

    /// Returns the `_sandboxagent/session/ended` notification, in snake case.
    pub(crate) fn notification(&self, session_id: &str) -> Value {
        json!({
            "jsonrpc": "2.0",
            "method": "_sandboxagent/session/ended",
            "params": { "session_id": session_id, "data": self.spelled(Spelling::Snake) },
        })
    }

    /// Returns the `terminationInfo` of a session, in camel case.
    pub(crate) fn info(&self) -> Value {
        self.spelled(Spelling::Camel)
    }

    fn spelled(&self, spelling: Spelling) -> Value {
        let name = |snake: &str, camel: &str| match spelling {
            Spelling::Snake => snake.to_owned(),
            Spelling::Camel => camel.to_owned(),
        };
        let mut members = Map::new();
        members.insert("reason".to_owned(), self.reason.into());
        members.insert(name("terminated_by", "terminatedBy"), self.terminated_by.into());
        let Some(failure) = &self.failure else { return members.into() };
        members.insert("message".to_owned(), failure.message.clone().into());
        if let Some(code) = failure.exit_code {
            members.insert(name("exit_code", "exitCode"), code.into());
        }
        if let Some(signal) = &failure.signal {
            members.insert("signal".to_owned(), signal.clone().into());
        }
        let summary = &failure.stderr;
        if summary.total_lines > 0 {
            let mut stderr = Map::new();
            if let Some(head) = &summary.head {
                stderr.insert("head".to_owned(), head.clone().into());
            }
            if let Some(tail) = &summary.tail {
                stderr.insert("tail".to_owned(), tail.clone().into());
            }
            stderr.insert("truncated".to_owned(), summary.truncated.into());
            stderr.insert(name("total_lines", "totalLines"), summary.total_lines.into());
            // Without it, all lines may be shown.
            if let Some(turn) = failure.turn_lines.filter(|turn| *turn < summary.total_lines) {
                stderr.insert(name("turn_lines", "turnLines"), turn.into());
            }
            members.insert("stderr".to_owned(), stderr.into());
        }
        members.into()
    }
}

/// Returns the message of an exit, in the format of Rust's `ExitStatus`.
pub(crate) fn exit_message(exit: &Exit) -> String {
    format!("agent exited with status ExitStatus(unix_wait_status({}))", exit.status.wait_status())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::ExitStatus;

    fn exit(status: ExitStatus, lines: u64) -> Exit {
        let stderr = StderrSummary {
            head: (lines > 0).then(|| "boom".to_owned()),
            total_lines: lines,
            ..StderrSummary::default()
        };
        Exit { status, stderr }
    }

    #[test]
    fn an_exit_code_is_spelled_both_ways() {
        let termination = Termination::by_exit(&exit(ExitStatus::Code(1), 1), None);
        let message = "agent exited with status ExitStatus(unix_wait_status(256))";
        assert_eq!(
            termination.notification("s")["params"],
            json!({ "session_id": "s", "data": {
                "reason": "error", "terminated_by": "agent", "message": message, "exit_code": 1,
                "stderr": { "head": "boom", "truncated": false, "total_lines": 1 },
            }})
        );
        assert_eq!(
            termination.info(),
            json!({
                "reason": "error", "terminatedBy": "agent", "message": message, "exitCode": 1,
                "stderr": { "head": "boom", "truncated": false, "totalLines": 1 },
            })
        );
    }

    #[test]
    fn lines_of_the_turn_are_counted_if_others_were_written_before() {
        let stderr = |turn_lines| {
            Termination::by_exit(&exit(ExitStatus::Code(1), 5), turn_lines).info()["stderr"].clone()
        };
        let expected = json!({ "head": "boom", "truncated": false, "totalLines": 5, "turnLines": 2 });
        assert_eq!(stderr(Some(2)), expected);
        for all in [None, Some(5)] {
            assert_eq!(stderr(all).get("turnLines"), None, "{all:?}");
        }
    }

    #[test]
    fn death_by_signal_has_a_name_and_no_code() {
        let info = Termination::by_exit(&exit(ExitStatus::Signal(9), 0), None).info();
        assert_eq!(
            info,
            json!({
                "reason": "error", "terminatedBy": "agent", "signal": "SIGKILL",
                "message": "agent exited with status ExitStatus(unix_wait_status(9))",
            })
        );
    }

    #[test]
    fn a_clean_exit_and_a_requested_end_have_no_other_members() {
        assert_eq!(
            Termination::by_exit(&exit(ExitStatus::Code(0), 5), None).info(),
            json!({ "reason": "completed", "terminatedBy": "agent" })
        );
        assert_eq!(
            Termination::by_request().info(),
            json!({ "reason": "terminated", "terminatedBy": "daemon" })
        );
    }
}
