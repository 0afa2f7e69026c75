//! HTTP: the only place that knows reqwest.

mod http;
mod metered;
mod post;
mod stream;

pub use http::http_client_builder;
pub(crate) use http::{Transport, TransportConfig, default_client};
pub(crate) use post::{Post, PostFailure, Posted, Sent};
pub(crate) use stream::{StreamFailure, Trouble};
