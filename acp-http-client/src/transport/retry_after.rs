//! The `Retry-After` header.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header::RETRY_AFTER};

/// The longest wait that a server can ask for. A longer one is shortened to this, so that a mistake or a hostile
/// server cannot stop a client for hours.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// How long a response asks to wait: a number of seconds or a date (RFC 9110, section 10.2.3).
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let delay = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        value.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs)
    } else {
        // A date that has passed asks for no wait.
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(delay.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn seconds_and_dates_are_read_and_capped() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let table = [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("300", Some(300)),
            ("301", Some(300)),
            ("99999999999999999999999", Some(300)),
            ("Sun, 06 Nov 1994 08:49:40 GMT", Some(3)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Sunday, 06-Nov-94 08:49:40 GMT", Some(3)),
            ("Sun Nov  6 08:49:40 1994", Some(3)),
            ("Sat, 06 Nov 2094 08:49:40 GMT", Some(300)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ];
        for (value, seconds) in table {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
