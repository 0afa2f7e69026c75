#![doc = include_str!("../README.md")]

mod agent;
mod control;
mod face;
mod fault;
mod hub;
mod json;
mod problem;
mod process;
mod scenario;
mod server;
mod stream;

pub use agent::{
    Agent, AgentAnswer, Crash, Exit, ExitStatus, LaunchError, Outlet, Output, Permission, PermissionOption,
    Running, Script, StderrSummary, Step, Terminal, ToolCall, Turn, Undelivered, text_triggers,
    text_triggers_at,
};
pub use control::{AGENT_IDS, ControlPlane, ControlPlaneBuilder, DEFAULT_BODY_LIMIT};
pub use fault::{Cut, Fault, LineEnding, Reply, Rule, RuleId};
pub use problem::{PROBLEM_JSON, Problem};
pub use process::{
    CommandLineError, MAX_STDERR_LINE_BYTES, MAX_STDOUT_LINE_BYTES, ProcessAgent, StderrCapture,
};
pub use scenario::Scenario;
pub use server::{Builder, Echo, MockServer, RecordedRequest, State};
