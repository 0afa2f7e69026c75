//! The cookies of a connection, bounded.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use http::HeaderValue;
use reqwest::cookie::{CookieStore, Jar};
use url::Url;

/// The largest cookie that is stored, with its attributes (RFC 6265 asks for 4,096 bytes).
const COOKIE_BYTES: usize = 4096;

/// Stores cookies for one endpoint. The official transport requires them (sticky load balancing).
#[derive(Debug)]
pub(super) struct Cookies {
    limit: usize,
    /// Guards the store; held for a look-up.
    store: Mutex<Store>,
    /// Whether there is any cookie, so that most requests take no lock.
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct Store {
    /// The headers that made the jar, oldest first, one for each name, domain and path.
    headers: VecDeque<(Vec<u8>, HeaderValue)>,
    jar: Jar,
}

impl Cookies {
    /// `limit` is how many cookies are stored. Beyond it the oldest are removed.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, store: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// The `Cookie` header for a URL.
    pub(super) fn header(&self, url: &Url) -> Option<HeaderValue> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.lock().jar.cookies(url)
    }

    /// Stores the values of `Set-Cookie` headers.
    pub(super) fn store<'a>(&self, values: impl Iterator<Item = &'a HeaderValue>, url: &Url) {
        let mut store = self.lock();
        for value in values.filter(|value| value.len() <= COOKIE_BYTES) {
            let key = key(value.as_bytes());
            store.headers.retain(|(known, _)| *known != key);
            store.headers.push_back((key, value.clone()));
            if store.headers.len() > self.limit {
                store.headers.pop_front();
                // A jar cannot remove one cookie.
                store.jar = Jar::default();
                let Store { headers, jar } = &mut *store;
                jar.set_cookies(&mut headers.iter().map(|(_, value)| value), url);
            } else {
                store.jar.set_cookies(&mut std::iter::once(value), url);
            }
            self.any.store(true, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What identifies a cookie: its name, domain and path.
fn key(header: &[u8]) -> Vec<u8> {
    let mut parts = header.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let mut key =
        parts.next().unwrap_or_default().split(|byte| *byte == b'=').next().unwrap_or_default().to_vec();
    for attribute in parts.map(<[u8]>::to_ascii_lowercase) {
        if attribute.starts_with(b"domain=") || attribute.starts_with(b"path=") {
            key.push(b';');
            key.extend_from_slice(&attribute);
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(limit: usize, headers: &[String]) -> (usize, Vec<String>) {
        let url = Url::parse("http://h/v1/rpc").unwrap();
        let cookies = Cookies::new(limit);
        for header in headers {
            let header = HeaderValue::from_str(header).unwrap();
            cookies.store(std::iter::once(&header), &url);
        }
        let sent = cookies.header(&url);
        let sent = sent.as_ref().map_or("", |value| value.to_str().unwrap());
        let mut sent: Vec<_> = sent.split("; ").filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
        sent.sort();
        (cookies.lock().headers.len(), sent)
    }

    fn numbered(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("c{number}={number}")).collect()
    }

    #[test]
    fn so_many_cookies_are_stored_and_the_oldest_are_removed() {
        assert_eq!(stored(3, &numbered(2)), (2, vec!["c0=0".to_owned(), "c1=1".to_owned()]));
        assert_eq!(stored(3, &numbered(3)).1, ["c0=0", "c1=1", "c2=2"]);
        assert_eq!(stored(3, &numbered(4)), (3, ["c1=1", "c2=2", "c3=3"].map(str::to_owned).to_vec()));
        assert_eq!(stored(0, &numbered(2)), (0, vec![]));
    }

    #[test]
    fn a_cookie_that_is_set_again_takes_no_more_room() {
        let again: Vec<_> = (0..1000).map(|number| format!("sticky={number}; Path=/")).collect();
        assert_eq!(stored(2, &again), (1, vec!["sticky=999".to_owned()]));
        let elsewhere: Vec<_> = (0..1000).map(|number| format!("sticky={number}; Path=/{number}")).collect();
        assert_eq!(stored(2, &elsewhere).0, 2);
    }

    #[test]
    fn a_cookie_over_the_size_is_not_stored() {
        let sized = |size: usize| vec![format!("c={}", "x".repeat(size - 2))];
        for (size, count) in [(COOKIE_BYTES - 1, 1), (COOKIE_BYTES, 1), (COOKIE_BYTES + 1, 0)] {
            assert_eq!(stored(3, &sized(size)).0, count, "{size}");
        }
    }
}
