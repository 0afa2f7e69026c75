//! Network requirements of a call: a runtime, and the proxy and warning rules for its URL.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use acp_http_client::{http_client_builder, is_loopback};
use url::Url;

use crate::Error;

/// How many hosts are remembered, so that the memory of warnings is bounded.
const WARNED_HOSTS: usize = 256;

/// The hosts that were warned about. Guards a set; held for an insertion.
static WARNED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

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

/// Warns, once for each host, that a token is sent over an unencrypted connection.
pub(crate) fn warn_of_plain_http(url: &Url) {
    if url.scheme() != "http" || is_loopback(url) {
        return;
    }
    let Some(host) = url.host_str() else { return };
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    let warned = warned.get_or_insert_default();
    if warned.len() < WARNED_HOSTS && warned.insert(host.to_owned()) {
        tracing::warn!(host, "a token is sent over plain http: anyone on the network path can read it");
    }
}
