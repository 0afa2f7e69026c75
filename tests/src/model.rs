//! A model provider on loopback that does what the last user text says.
//!
//! It speaks OpenAI chat completions and responses, Anthropic messages and Gemini `generateContent`, streaming and
//! not, so that real coding agents run against it without network and without an account.

mod anthropic;
mod chat;
mod gemini;
mod reply;
mod request;
mod responses;
mod script;
mod server;
mod tool;
mod wire;

#[cfg(test)]
mod tests;

pub use request::{Api, ModelRequest};
pub use script::{EDITED, WRITTEN};
pub use server::{INPUT_TOKENS, OUTPUT_TOKENS, ScriptedModel};
