//! HTTP: the only user of reqwest.

mod connector;
mod cookies;
mod handover;
mod http;
mod plain_http;
mod post;
#[cfg(test)]
mod post_tests;
mod retry_after;
mod sender;
mod stream;

pub(crate) use connector::default_client;
pub use connector::{http_client_builder, http_client_builder_trusting, is_loopback};
pub(crate) use handover::Handover;
pub(crate) use http::{Transport, TransportConfig};
pub use plain_http::warn_of_plain_http;
pub(crate) use post::{Post, PostFailure, Posted, Sent};
pub(crate) use sender::Sender;
pub use sender::{HttpSendError, HttpSender};
pub(crate) use stream::{EventStream, StreamFailure, Trouble};
