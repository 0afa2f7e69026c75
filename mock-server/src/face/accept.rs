use axum::http::{HeaderMap, header};

use crate::problem::Problem;

/// Checks that a POST carries JSON and that its sender accepts JSON.
pub(super) fn json_in_and_out(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(Problem::unsupported_media_type("content-type must be application/json"));
    }
    if !accepts(headers, "application", "json") {
        return Err(Problem::not_acceptable("accept must allow application/json"));
    }
    Ok(())
}

/// Checks that the sender of a GET accepts an event stream.
pub(super) fn events_out(headers: &HeaderMap) -> Result<(), Problem> {
    if accepts(headers, "text", "event-stream") {
        Ok(())
    } else {
        Err(Problem::not_acceptable("accept must allow text/event-stream"))
    }
}

/// Parses `Last-Event-ID`: 0 without the header; a blank value counts as absent.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<u64, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(0) };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| Problem::invalid_request("Last-Event-ID must be a positive integer"))
}

/// Whether the `Accept` headers allow a media type. Without a header everything is allowed; `q` is ignored.
fn accepts(headers: &HeaderMap, kind: &str, subtype: &str) -> bool {
    let mut any = false;
    for value in headers.get_all(header::ACCEPT) {
        any = true;
        for item in value.to_str().unwrap_or_default().split(',') {
            let range = item.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            if range == "*/*" || range == format!("{kind}/*") || range == format!("{kind}/{subtype}") {
                return true;
            }
        }
    }
    !any
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn accept_allows_by_wildcard_list_and_absence() {
        for value in ["*/*", "text/*", "text/event-stream", "application/json, text/event-stream;q=0.1"] {
            assert!(events_out(&with("accept", value)).is_ok(), "{value}");
        }
        assert!(events_out(&HeaderMap::new()).is_ok());
        assert_eq!(events_out(&with("accept", "application/json")).unwrap_err().status(), 406);
    }

    #[test]
    fn the_last_event_id_is_a_number_or_absent() {
        for (value, expected) in [("", 0), (" 7 ", 7), ("0", 0)] {
            assert_eq!(last_event_id(&with("last-event-id", value)).unwrap(), expected);
        }
        for value in ["abc", "-1", "1.5"] {
            assert_eq!(last_event_id(&with("last-event-id", value)).unwrap_err().status(), 400, "{value}");
        }
    }

    #[test]
    fn the_content_type_may_have_parameters_but_not_be_absent() {
        assert!(json_in_and_out(&with("content-type", "Application/JSON; charset=utf-8")).is_ok());
        assert_eq!(json_in_and_out(&HeaderMap::new()).unwrap_err().status(), 415);
    }
}
