//! Faults that can be injected while the server is running.

mod engine;
mod kind;
mod publish;
mod rule;
mod shape;

pub(crate) use engine::{EventFate, Faults, Moment};
pub use kind::{Cut, Fault, LineEnding, Reply};
pub(crate) use publish::apply_to_log;
pub use rule::{Rule, RuleId};
pub(crate) use shape::Shape;
