//! HTTP: the only place that knows reqwest.

mod http;
mod post;
mod stream;

pub(crate) use http::{Transport, TransportConfig, default_client};
pub(crate) use post::{Post, PostFailure, Posted, Sent};
pub(crate) use stream::{StreamFailure, Trouble};
