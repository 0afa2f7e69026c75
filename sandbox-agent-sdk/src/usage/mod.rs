//! Usage of turns (tokens, cost, context, time), and budgets that limit it.
//!
//! Agents report usage in different places and with different meanings:
//!
//! | agent | where | what it counts |
//! |---|---|---|
//! | opencode | `usage` of the response | the last model call only |
//! | | `cost` of a `usage_update` | the session so far, across restarts of the agent |
//! | claude | `usage` of the response | the turn |
//! | | `cost` of a `usage_update` | the agent's process so far |
//! | codex | `usage_update`, without a cost | the context; no tokens |
//! | gemini | `_meta.quota` of the response | the turn |
//! | qwen | `_meta.usage` of a message chunk | one model call |
//! | others | `usage` of the response | the turn |
//! | | `cost` of a `usage_update` | the session so far |
//!
//! This module normalises the reports. [`TurnOutcome::usage`](crate::TurnOutcome::usage) is the usage of one turn.
//! [`Session::usage`](crate::Session::usage) and [`SandboxAgentClient::usage`](crate::SandboxAgentClient::usage)
//! return totals. Each report counts once: replayed events and the history of a loaded session are not counted again.
//! If an agent reports a running total, only its increase counts.

pub(crate) mod agents;
mod budget;
mod cost;
mod meter;
mod report;
mod table;
#[cfg(test)]
mod tests;
mod tokens;

pub use budget::{Budget, BudgetEvent, BudgetMeasure, BudgetState};
pub use cost::Cost;
pub(crate) use meter::{Meter, TurnEnd};
pub use report::{ContextUsage, Counts, ModelUsage, TurnUsage, UsageTotals};
pub(crate) use table::UsageTable;
pub use tokens::Tokens;
