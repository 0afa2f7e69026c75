//! How a server's URL decides about proxies and warnings.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use acp_http_client::http_client_builder;
use url::{Host, Url};

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

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
        Some(Host::Domain(name)) => name.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::is_loopback;

    #[test]
    fn loopback_is_told_from_other_hosts_by_address_and_not_by_looks() {
        let loopback = [
            "http://127.0.0.1:2468",
            "http://127.9.9.9",
            "http://[::1]:1",
            "http://[::ffff:127.0.0.1]",
            "http://localhost",
            "http://LOCALHOST.:7",
            "http://2130706433",
        ];
        let others = [
            "http://10.0.0.1",
            "http://127.0.0.1.example.com",
            "http://localhost.example.com",
            "http://notlocalhost",
            "http://[::2]",
            "http://0.0.0.0",
        ];
        for url in loopback {
            assert!(is_loopback(&Url::parse(url).unwrap()), "{url}");
        }
        for url in others {
            assert!(!is_loopback(&Url::parse(url).unwrap()), "{url}");
        }
    }
}
