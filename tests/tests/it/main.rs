//! Integration tests over real sockets.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod acp;
mod chat;
mod control;
mod dependencies;
mod fuzz;
mod local;
mod provider;
mod record;
mod replay;
mod security_page;
mod servers;
mod sim;
