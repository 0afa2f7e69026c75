//! Paths and queries of requests.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::Error;

/// Encodes everything that is not `unreserved` in RFC 3986. A space becomes `%20` and a plus `%2B`, so that
/// the result is the same whether or not the server parses the query as a form.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The same for query values, where a slash needs no encoding.
const ENCODED_VALUE: &AsciiSet = &ENCODED.remove(b'/');

/// The path and the query of a request, both percent-encoded.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    path: String,
    query: String,
}

impl Route {
    /// Creates a route from a constant path that needs no encoding.
    pub(crate) fn new(path: &'static str) -> Self {
        Self { path: path.to_owned(), query: String::new() }
    }

    /// Adds a path segment. Rejects an empty segment, `.` and `..`.
    pub(crate) fn segment(mut self, segment: &str) -> Result<Self, Error> {
        // URL parsers normalise these in encoded form too, so encoding does not help.
        if matches!(segment, "" | "." | "..") {
            return Err(Error::config(format!("`{segment}` is not a valid name")));
        }
        let _ = write!(self.path, "/{}", utf8_percent_encode(segment, ENCODED));
        Ok(self)
    }

    /// Adds a query parameter.
    pub(crate) fn query(mut self, name: &'static str, value: &str) -> Self {
        let separator = if self.query.is_empty() { "" } else { "&" };
        let _ = write!(self.query, "{separator}{name}={}", utf8_percent_encode(value, ENCODED_VALUE));
        self
    }

    /// Adds a query parameter if it is on. Servers default to off.
    pub(crate) fn flag(self, name: &'static str, on: bool) -> Self {
        if on { self.query(name, "true") } else { self }
    }

    /// Returns the full URL.
    pub(super) fn under(&self, base: &Url) -> Url {
        let mut url = base.clone();
        url.set_path(&format!("{}{}", base.path().trim_end_matches('/'), self.path));
        url.set_query(Some(self.query.as_str()).filter(|query| !query.is_empty()));
        url
    }
}

/// Parses and checks a base URL.
pub(super) fn parse_base(base: &str) -> Result<Url, Error> {
    // The error does not contain the URL, because it may hold private data.
    let invalid = |what: &str| Err(Error::config(format!("the base URL {what}")));
    let Ok(url) = Url::parse(base.trim()) else { return invalid("is not a valid URL") };
    if !matches!(url.scheme(), "http" | "https") {
        return invalid("is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid("contains credentials; use a token or a header");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return invalid("has a query or a fragment");
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(base: &str, route: &Route) -> String {
        route.under(&parse_base(base).unwrap()).into()
    }

    #[test]
    fn routes_are_appended_to_the_base_url() {
        let route = Route::new("/v1/health");
        assert_eq!(under("http://h:1", &route), "http://h:1/v1/health");
        assert_eq!(under(" http://h:1/ ", &route), "http://h:1/v1/health");
        assert_eq!(under("https://h/box/7/", &route), "https://h/box/7/v1/health");
    }

    #[test]
    fn values_are_encoded_for_any_reader() {
        let table = [
            ("/a b", "/a%20b"),
            ("/a+b", "/a%2Bb"),
            ("/50%/#1?", "/50%25/%231%3F"),
            ("/ä/日本", "/%C3%A4/%E6%97%A5%E6%9C%AC"),
            ("a&path=/etc", "a%26path%3D/etc"),
            ("../..", "../.."),
            ("\0\n\"'\\", "%00%0A%22%27%5C"),
            ("~.-_", "~.-_"),
        ];
        for (path, encoded) in table {
            let route = Route::new("/v1/fs/file").query("path", path).flag("recursive", true);
            let expected = format!("http://h/v1/fs/file?path={encoded}&recursive=true");
            assert_eq!(under("http://h", &route), expected);
            let decoded = route.under(&parse_base("http://h").unwrap());
            assert_eq!(decoded.query_pairs().next().unwrap().1, path, "a form parser reads the same");
        }
        assert_eq!(under("http://h", &Route::new("/x").flag("config", false)), "http://h/x");
    }

    #[test]
    fn a_segment_stays_one_segment() {
        for (segment, encoded) in
            [("mock", "mock"), ("a/b?c#d", "a%2Fb%3Fc%23d"), ("...", "..."), ("%2e", "%252e")]
        {
            let route = Route::new("/v1/agents").segment(segment).unwrap();
            assert_eq!(under("http://h", &route), format!("http://h/v1/agents/{encoded}"));
        }
        for segment in ["", ".", ".."] {
            assert!(matches!(Route::new("/v1/agents").segment(segment), Err(Error::Config(_))), "{segment}");
        }
    }

    #[test]
    fn an_invalid_base_url_is_reported_without_its_secrets() {
        let bases = [
            "",
            "nonsense",
            "ftp://h",
            "http://",
            "http://u:secret@h",
            "http://h?t=secret",
            "http://h#secret",
        ];
        for base in bases {
            let error = parse_base(base).unwrap_err();
            assert!(matches!(error, Error::Config(_)) && !error.to_string().contains("secret"), "{base}");
        }
    }
}
