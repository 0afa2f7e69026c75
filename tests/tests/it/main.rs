//! Integration tests over real sockets.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod acp;
mod chat;
mod local;
mod record;
mod replay;
mod servers;
mod sim;
