//! Turns in detail: their events, and what they amount to.

pub use crate::client::{CollectedTurn, FileChange, IncompleteTurn, TurnEvent};
