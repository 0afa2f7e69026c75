//! One JSON-RPC message that was received.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{MessageId, RpcError, update};
use crate::{Limits, json};

/// A message that was received. A payload is a slice of its text, unless most of the text is something else.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The whole message, as UTF-8.
    pub(crate) raw: Bytes,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// A `session/update` in the form that servers write, recognised by its structure. Its parameters are parsed by the
    /// subscriber, and may turn out not to be JSON.
    Update {
        params: Bytes,
    },
    Request {
        id: MessageId,
        method: Cow<'static, str>,
        params: Bytes,
    },
    Notification {
        method: Cow<'static, str>,
        params: Bytes,
    },
    Response {
        id: MessageId,
        outcome: RpcOutcome,
    },
}

/// A result as received, or an error.
pub(crate) type RpcOutcome = Result<Bytes, RpcError>;

/// Why an event is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("not a JSON object: {0}")]
    NotAnObject(String),
    #[error("neither a request, a notification nor a response")]
    NotRpc,
    #[error("{what} is {size} bytes long; the limit is {limit}")]
    TooLong { what: &'static str, size: usize, limit: usize },
    #[error("the update takes more than {limit} bytes once decoded")]
    TooLargeDecoded { limit: usize },
}

impl MessageError {
    /// What is wrong, without anything that the server sent.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::NotAnObject(_) => "not a JSON object",
            Self::NotRpc => "not JSON-RPC",
            Self::TooLong { .. } => "an id is over the limit",
            Self::TooLargeDecoded { .. } => "an update is over the limit once decoded",
        }
    }

    /// Whether the data may be a damaged message about a session. Agents also print JSON that is not a message.
    pub(crate) fn may_hide_message(&self, data: &[u8]) -> bool {
        const SESSION: &[u8] = b"\"sessionId\"";
        let is_damaged = matches!(self, Self::NotAnObject(_)) && data.trim_ascii_start().starts_with(b"{");
        is_damaged || data.windows(SESSION.len()).any(|part| part == SESSION)
    }

    /// Returns an error if an id or a name is longer than the limit for ids.
    pub(crate) fn check_length(what: &'static str, size: usize, limits: &Limits) -> Result<(), Self> {
        let limit = limits.id;
        if size > limit { Err(Self::TooLong { what, size, limit }) } else { Ok(()) }
    }
}

/// The payload of a message without one.
const NULL: Bytes = Bytes::from_static(b"null");

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default, borrow, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "text")]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Distinguishes `null` from an absent member.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    Text::deserialize(deserializer).map(|text| Some(text.0))
}

impl Message {
    /// Whether it is a `session/update`.
    pub(crate) fn is_update(&self) -> bool {
        match &self.body {
            Body::Update { .. } => true,
            Body::Notification { method, .. } => method == "session/update",
            _ => false,
        }
    }

    /// Parses one message. Bytes that are not UTF-8 are replaced, as the event stream format requires.
    pub(crate) fn parse(data: Bytes, limits: &Limits) -> Result<Self, MessageError> {
        if let Some(params) = update::params(&data) {
            let params = payload(&data, &data[params]);
            return Self { raw: data, body: Body::Update { params } }.checked(limits);
        }
        match std::str::from_utf8(&data) {
            Ok(text) => {
                let body = Self::parse_body(&data, text, limits)?;
                Self { raw: data, body }.checked(limits)
            }
            Err(_) => Self::parse(String::from_utf8_lossy(&data).into_owned().into(), limits),
        }
    }

    /// Checks what an update takes once it is decoded. Other messages are checked where they are decoded.
    fn checked(self, limits: &Limits) -> Result<Self, MessageError> {
        if let Body::Update { params } | Body::Notification { params, .. } = &self.body
            && self.is_update()
        {
            let limit = limits.decoded;
            json::check_size(params, limit).map_err(|_| MessageError::TooLargeDecoded { limit })?;
        }
        Ok(self)
    }

    fn parse_body(raw: &Bytes, text: &str, limits: &Limits) -> Result<Body, MessageError> {
        // A list would be read as the members in their order.
        if text.trim_start().starts_with('[') {
            return Err(MessageError::NotAnObject("it is a list".to_owned()));
        }
        let envelope: Envelope<'_> =
            serde_json::from_str(text).map_err(|error| MessageError::NotAnObject(error.to_string()))?;
        let slice =
            |value: Option<&RawValue>| value.map_or(NULL, |value| payload(raw, value.get().as_bytes()));
        MessageError::check_length("the id", envelope.id.map_or(0, |id| id.get().len()), limits)?;
        let method = envelope.method.as_deref().unwrap_or_default();
        MessageError::check_length("the method", method.len(), limits)?;
        let id = envelope.id.map(|id| MessageId::from_json(id.get()));
        match (id, envelope.method) {
            (Some(id), Some(method)) => {
                Ok(Body::Request { id, method: known(method), params: slice(envelope.params) })
            }
            (None, Some(method)) => {
                Ok(Body::Notification { method: known(method), params: slice(envelope.params) })
            }
            (Some(id), None) => match (envelope.error.filter(|error| error.get() != "null"), envelope.result)
            {
                (Some(error), _) => Ok(Body::Response { id, outcome: Err(read_error(error, limits)) }),
                (None, Some(result)) => Ok(Body::Response { id, outcome: Ok(slice(Some(result))) }),
                (None, None) => Err(MessageError::NotRpc),
            },
            (None, None) => Err(MessageError::NotRpc),
        }
    }
}

/// A part of a message that can outlive it.
///
/// A slice keeps the whole message in memory, but only the size of the part counts in budgets. A part that is less
/// than half of the message is therefore copied.
fn payload(message: &Bytes, part: &[u8]) -> Bytes {
    if part.len() < message.len() / 2 { Bytes::copy_from_slice(part) } else { message.slice_ref(part) }
}

/// The most frequent methods need no allocation.
fn known(method: Cow<'_, str>) -> Cow<'static, str> {
    match method.as_ref() {
        "session/update" => Cow::Borrowed("session/update"),
        "session/request_permission" => Cow::Borrowed("session/request_permission"),
        _ => Cow::Owned(method.into_owned()),
    }
}

/// Reads an error object leniently. Data that is too deep or too large is replaced by a string with the reason.
fn read_error(raw: &RawValue, limits: &Limits) -> RpcError {
    #[derive(Deserialize)]
    struct Fields<'a> {
        code: i64,
        #[serde(default)]
        message: String,
        #[serde(default, borrow, deserialize_with = "present")]
        data: Option<&'a RawValue>,
    }
    let data = |raw: &RawValue| {
        let decoded = json::decode(raw.get().as_bytes(), limits.decoded);
        decoded.unwrap_or_else(|error| format!("error data was omitted: {error}").into())
    };
    match serde_json::from_str::<Fields<'_>>(raw.get()) {
        Ok(Fields { code, message, data: raw }) => {
            let raw = raw.filter(|raw| raw.get() != "null");
            RpcError { code, message, data: raw.map(data) }
        }
        Err(_) => RpcError {
            code: 0,
            message: "the error object is not a JSON-RPC error".to_owned(),
            data: Some(data(raw)),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Result<Body, MessageError> {
        Message::parse(Bytes::copy_from_slice(text.as_bytes()), &Limits::default())
            .map(|message| message.body)
    }

    #[test]
    fn the_three_kinds_are_distinguished() {
        assert!(matches!(
            parse(r#"{"jsonrpc":"2.0","id":"p-1","method":"fs/read_text_file","params":{"a":1}}"#),
            Ok(Body::Request { id, method, params })
                if id.as_json() == "\"p-1\"" && method == "fs/read_text_file" && params.as_ref() == br#"{"a":1}"#
        ));
        assert!(matches!(
            parse(r#"{"method":"session/update"}"#),
            Ok(Body::Notification { method: Cow::Borrowed("session/update"), params }) if params.as_ref() == b"null"
        ));
        assert!(matches!(
            parse(r#"{"id":7,"result":null}"#),
            Ok(Body::Response { outcome: Ok(result), .. }) if result.as_ref() == b"null"
        ));
        assert!(matches!(
            parse(r#"{"id":null,"method":"x"}"#),
            Ok(Body::Request { id, .. }) if id.as_json() == "null"
        ));
    }

    #[test]
    fn an_update_in_the_usual_form_is_recognised_and_any_other_form_is_parsed() {
        let update = r#"{"sessionId":"s","update":{"sessionUpdate":"x"}}"#;
        let usual = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{update}}}"#);
        assert!(matches!(parse(&usual), Ok(Body::Update { params }) if params == update.as_bytes()));
        let spaced = format!(r#"{{ "method":"session/update","params":{update}}}"#);
        assert!(matches!(parse(&spaced), Ok(Body::Notification { .. })));
        let request = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{update},"id":1}}"#);
        assert!(matches!(parse(&request), Ok(Body::Request { .. })));
    }

    #[test]
    fn members_after_the_parameters_are_no_part_of_them() {
        let params = r#"{"sessionId":"s","update":{"text":"a } \" {[ \\"}}"#;
        let head = r#"{"jsonrpc":"2.0","method":"session/update","params":"#;
        for (space, member) in
            [("", r#""x":{}"#), (" ", r#""x":{"y":{"z":"}"}}"#), ("\r\n\t ", r#""_meta":{"a":[{}]}"#)]
        {
            let text = format!("{head}{params}{space},{member}}}");
            assert!(
                matches!(parse(&text), Ok(Body::Notification { params: read, .. }) if read == params.as_bytes()),
                "{text}"
            );
            let text = format!("{head}{params}{space},\"id\":7,{member}}}");
            assert!(matches!(parse(&text), Ok(Body::Request { id, .. }) if id.as_json() == "7"), "{text}");
        }
        for broken in [r#"{"a":"}}"#, r#"{"a":{}}}}"#, r#"{"a":"\"}}"#, r#"{"a":1}{"b":2}}"#] {
            let text = format!("{head}{broken}");
            match parse(&text) {
                Err(MessageError::NotAnObject(_)) => {}
                // The subscriber finds out.
                Ok(Body::Update { params }) => {
                    assert!(serde_json::from_slice::<serde_json::Value>(&params).is_err(), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn ids_and_methods_have_a_limit() {
        let limits = Limits::default().id(10);
        let parse = |text: &str| Message::parse(Bytes::copy_from_slice(text.as_bytes()), &limits);
        for (size, fits) in [(9, true), (10, true), (11, false)] {
            let id = "1".repeat(size);
            for text in [format!(r#"{{"id":{id},"method":"m"}}"#), format!(r#"{{"id":{id},"result":1}}"#)] {
                assert_eq!(parse(&text).is_ok(), fits, "{text}");
            }
            let text = format!(r#"{{"method":"{}"}}"#, "m".repeat(size));
            assert_eq!(parse(&text).is_ok(), fits, "{text}");
        }
        let error = parse(r#"{"id":"0123456789","method":"m"}"#).unwrap_err();
        assert_eq!(error, MessageError::TooLong { what: "the id", size: 12, limit: 10 });
    }

    #[test]
    fn a_list_is_no_message() {
        for text in [r#"[7,"fs/read_text_file",{}]"#, r#" [1, null, null, {}]"#, "7", ""] {
            let parsed = Message::parse(Bytes::from_static(text.as_bytes()), &Limits::default());
            assert!(matches!(parsed, Err(MessageError::NotAnObject(_))), "{text} {parsed:?}");
        }
    }

    #[test]
    fn an_update_is_taken_up_to_the_decoded_limit_and_not_above() {
        let params = format!(r#"{{"sessionId":"s","update":[{}0]}}"#, "0,".repeat(999));
        // The smallest limit that lets it pass.
        let is_enough = |limit: usize| json::decode(params.as_bytes(), limit).is_ok();
        let (mut below, mut size) = (0, 1 << 20);
        while below + 1 < size {
            let middle = (below + size) / 2;
            if is_enough(middle) {
                size = middle;
            } else {
                below = middle;
            }
        }
        for head in [
            r#"{"jsonrpc":"2.0","method":"session/update","params":"#,
            r#"{"method":"session/update","params":"#,
        ] {
            for (limit, fits) in [(size - 1, false), (size, true), (size + 1, true)] {
                let text = Bytes::from(format!("{head}{params}}}"));
                let parsed = Message::parse(text, &Limits::default().decoded(limit));
                assert_eq!(parsed.is_ok(), fits, "{limit} {parsed:?}");
            }
        }
    }

    #[test]
    fn error_data_has_a_limit_and_the_error_is_kept() {
        let limits = Limits::default().decoded(10 * size_of::<serde_json::Value>());
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        for (data, omitted) in
            [("[1,2,3,4,5,6,7,8,9]", false), ("[1,2,3,4,5,6,7,8,9,10]", true), (&*deep, true)]
        {
            let text = format!(r#"{{"id":1,"error":{{"code":-7,"message":"no","data":{data}}}}}"#);
            let Ok(Message { body: Body::Response { outcome: Err(error), .. }, .. }) =
                Message::parse(Bytes::from(text), &limits)
            else {
                panic!("an error response")
            };
            assert_eq!((error.code, error.message.as_str()), (-7, "no"));
            assert_eq!(error.data.unwrap().is_string(), omitted, "{data}");
        }
    }

    #[test]
    fn errors_are_kept_whole_and_read_leniently() {
        let cases = [
            (r#"{"id":1,"error":{"code":-32000,"message":"no","data":"text"}}"#, -32000, Some(json!("text"))),
            (r#"{"id":1,"error":{"code":99999999999}}"#, 99_999_999_999, None),
            (r#"{"id":1,"error":"boom"}"#, 0, Some(json!("boom"))),
            (r#"{"id":1,"error":{"code":1},"result":{}}"#, 1, None),
        ];
        for (text, code, data) in cases {
            match parse(text) {
                Ok(Body::Response { outcome: Err(error), .. }) => {
                    assert_eq!((error.code, error.data), (code, data))
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(
            parse(r#"{"id":1,"error":null,"result":1}"#),
            Ok(Body::Response { outcome: Ok(_), .. })
        ));
    }

    #[test]
    fn text_that_is_not_a_message_is_an_error() {
        for text in [
            "42",
            "\"x\"",
            "[1,2]",
            "null",
            "",
            "{",
            "<html>",
            r#"{"id":1,"id":2,"method":"x"}"#,
            r#"{"method":3}"#,
        ] {
            assert!(matches!(parse(text), Err(MessageError::NotAnObject(_))), "{text}");
        }
        for text in ["{}", r#"{"id":1}"#, r#"{"params":{}}"#] {
            assert!(matches!(parse(text), Err(MessageError::NotRpc)), "{text}");
        }
    }

    #[test]
    fn a_byte_that_is_not_utf8_is_replaced() {
        let message = Message::parse(
            Bytes::from_static(b"{\"method\":\"x\",\"params\":\"a\xffb\"}"),
            &Limits::default(),
        )
        .unwrap();
        assert!(
            matches!(message.body, Body::Notification { params, .. } if params == "\"a\u{fffd}b\"".as_bytes())
        );
    }

    #[test]
    fn a_payload_is_a_slice_unless_it_would_keep_a_larger_message_in_memory() {
        let padding = "x".repeat(100_000);
        let cases = [
            (r#"{"method":"x","params":{"big":"payload of this message"}}"#.to_owned(), true),
            (format!(r#"{{"method":"x","padding":"{padding}","params":{{}}}}"#), false),
            (format!(r#"{{"id":1,"method":"x","padding":"{padding}","params":{{}}}}"#), false),
            (format!(r#"{{"id":1,"padding":"{padding}","result":{{}}}}"#), false),
            (format!(r#"{{"method":"session/update","params":{{}}{}}}"#, " ".repeat(100_000)), false),
        ];
        for (text, is_slice) in cases {
            let raw = Bytes::from(text);
            let payload = match Message::parse(raw.clone(), &Limits::default()).unwrap().body {
                Body::Update { params }
                | Body::Notification { params, .. }
                | Body::Request { params, .. } => params,
                Body::Response { outcome, .. } => outcome.unwrap(),
            };
            assert_eq!(raw.as_ptr_range().contains(&payload.as_ptr()), is_slice, "{payload:?}");
        }
    }
}
