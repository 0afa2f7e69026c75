//! The warning about tokens on unencrypted connections.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use url::Url;

use super::is_loopback;

/// How many hosts are remembered, so that the memory of warnings is bounded.
const WARNED_HOSTS: usize = 256;

/// The hosts that were warned about. Guards a set; held for an insertion.
static WARNED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Warns, once for each host, that a token is sent over an unencrypted connection.
pub fn warn_of_plain_http(url: &Url) {
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
