//! Network requirements of a call: a runtime, and the proxy rules for its URL.

use acp_http_client::{http_client_builder, is_loopback};
use url::Url;

use crate::Error;

/// A builder of HTTP clients for a server: a connection to the loopback interface never uses a proxy.
///
/// A proxy would see the token, and `HTTP_PROXY` applies to loopback addresses unless `NO_PROXY` names them.
pub(crate) fn http_client_builder_for(base_url: &str) -> reqwest::ClientBuilder {
    let builder = http_client_builder();
    match Url::parse(base_url.trim()) {
        Ok(url) if is_loopback(&url) => builder.no_proxy(),
        _ => builder,
    }
}

/// Checks that there is a tokio runtime, without which timers and sockets panic.
pub(crate) fn check_runtime() -> Result<(), Error> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::config("a call needs a tokio runtime")),
    }
}
