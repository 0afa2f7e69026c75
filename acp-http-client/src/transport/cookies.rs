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
    /// The cookies, oldest first. Held for a look-up.
    store: Mutex<VecDeque<Cookie>>,
    /// Whether there is any cookie, so that most requests take no lock.
    any: AtomicBool,
}

/// What identifies a cookie, as a jar does.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    name: Vec<u8>,
    domain: Vec<u8>,
    path: Vec<u8>,
}

/// A cookie in its own jar, because a jar can neither remove nor count its cookies.
#[derive(Debug)]
struct Cookie {
    key: Key,
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
        let pairs: Vec<_> = self.lock().iter().filter_map(|cookie| cookie.jar.cookies(url)).collect();
        let pairs: Vec<_> = pairs.iter().map(HeaderValue::as_bytes).collect();
        if pairs.is_empty() {
            return None;
        }
        HeaderValue::from_bytes(&pairs.join(&b"; "[..])).ok()
    }

    /// Stores the values of `Set-Cookie` headers.
    pub(super) fn store<'a>(&self, values: impl Iterator<Item = &'a HeaderValue>, url: &Url) {
        let mut store = self.lock();
        for value in values.filter(|value| value.len() <= COOKIE_BYTES) {
            let key = Key::new(value.as_bytes(), url);
            let jar = Jar::default();
            jar.set_cookies(&mut std::iter::once(value), url);
            store.retain(|cookie| cookie.key != key);
            store.push_back(Cookie { key, jar });
            if store.len() > self.limit {
                store.pop_front();
            }
            self.any.store(true, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Cookie>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Key {
    /// The name, domain and path of a `Set-Cookie` header. Of two attributes with one name the last counts.
    fn new(header: &[u8], url: &Url) -> Self {
        let mut parts = header.split(|byte| *byte == b';').map(|part| {
            let (name, value) =
                part.split_at(part.iter().position(|byte| *byte == b'=').unwrap_or(part.len()));
            (name.trim_ascii(), value.strip_prefix(b"=").unwrap_or_default().trim_ascii())
        });
        let name = parts.next().map(|(name, _)| name.to_vec()).unwrap_or_default();
        let mut domain = url.host_str().unwrap_or_default().as_bytes().to_vec();
        let url_path = url.path().as_bytes();
        let end = url_path.iter().rposition(|byte| *byte == b'/').unwrap_or(0).max(1).min(url_path.len());
        let default = &url_path[..end];
        let mut path = default.to_vec();
        for (attribute, value) in parts {
            if attribute.eq_ignore_ascii_case(b"domain") {
                let value = value.strip_prefix(b".").unwrap_or(value);
                if !value.is_empty() {
                    domain = value.to_ascii_lowercase();
                }
            } else if attribute.eq_ignore_ascii_case(b"path") {
                path = if value.starts_with(b"/") { value } else { default }.to_vec();
            }
        }
        Self { name, domain, path }
    }
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
        (cookies.lock().len(), sent)
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

    /// Every spelling of an attribute that the jar accepts counts.
    #[test]
    fn cookies_of_many_paths_are_bounded_however_their_attributes_are_written() {
        for attribute in ["Path=", "Path =", "PATH = ", "x; path\t=", "Path=/; Path = "] {
            let cookies = Cookies::new(3);
            let at = |number: usize| Url::parse(&format!("http://h/{number}")).unwrap();
            for number in 0..100 {
                let header = HeaderValue::from_str(&format!("a=x; {attribute}/{number}")).unwrap();
                cookies.store(std::iter::once(&header), &at(number));
            }
            let stored: Vec<_> = (0..100).filter(|number| cookies.header(&at(*number)).is_some()).collect();
            assert_eq!(stored, [97, 98, 99], "{attribute}");
        }
    }

    #[test]
    fn one_cookie_is_stored_once_however_it_is_written() {
        let again =
            ["a=0", "a =1", " a=2", "a=3; Path=/v1", "a=4; path = /v1", "a=5; Path=none", "a=6; Domain=H"];
        let again = again.map(str::to_owned);
        assert_eq!(stored(3, &again), (1, vec!["a=6".to_owned()]));
        let others = ["a=1", "A=2", "a=3; Path=/", "a=4; Path=/V1"].map(str::to_owned);
        assert_eq!(stored(9, &others), (4, ["A=2", "a=1", "a=3"].map(str::to_owned).to_vec()));
    }

    /// Later cookies do not make it valid again.
    #[test]
    fn a_cookie_that_was_deleted_stays_deleted() {
        let headers = ["a=1", "b=1", "a=; Max-Age=0", "c=1", "d=1"].map(str::to_owned);
        assert_eq!(stored(4, &headers).1, ["b=1", "c=1", "d=1"]);
    }

    #[test]
    fn a_cookie_over_the_size_is_not_stored() {
        let sized = |size: usize| vec![format!("c={}", "x".repeat(size - 2))];
        for (size, count) in [(COOKIE_BYTES - 1, 1), (COOKIE_BYTES, 1), (COOKIE_BYTES + 1, 0)] {
            assert_eq!(stored(3, &sized(size)).0, count, "{size}");
        }
    }
}
