//! One JSON-RPC message: read without copying its payload, written in one go.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::{MessageId, RpcError};

/// A message that was received. Payloads are slices of the text it came in.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The whole message, as UTF-8.
    pub(crate) raw: Bytes,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// A `session/update` as servers write it, told by its beginning and its end. Its parameters are read by whoever
    /// gets it, and may turn out not to be JSON.
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

/// A result as it came, or an error.
pub(crate) type RpcOutcome = Result<Bytes, RpcError>;

/// Why an event is not a message.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("not a JSON object: {0}")]
    NotAnObject(String),
    #[error("neither a request, a notification nor a response")]
    NotRpc,
}

/// What an update begins with, whether its members are in the usual order or sorted, and what it ends with: the end
/// of its parameters and of the message, so that no `id` can stand behind them.
const UPDATE_HEAD: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"#;
const UPDATE_TAIL: &[u8] = b"}}";

/// The payload of a message that has none.
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

/// Tells `null` from absent.
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

    /// Reads one message. Bytes that are not UTF-8 are replaced, as the event stream format wants it.
    pub(crate) fn parse(data: Bytes) -> Result<Self, MessageError> {
        if data.starts_with(UPDATE_HEAD) && data.ends_with(UPDATE_TAIL) {
            let params = data.slice(UPDATE_HEAD.len() - 1..data.len() - 1);
            return Ok(Self { raw: data, body: Body::Update { params } });
        }
        let raw = match std::str::from_utf8(&data) {
            Ok(_) => data,
            Err(_) => Bytes::from(String::from_utf8_lossy(&data).into_owned()),
        };
        let body = Self::parse_body(&raw)?;
        Ok(Self { raw, body })
    }

    fn parse_body(raw: &Bytes) -> Result<Body, MessageError> {
        let envelope: Envelope<'_> =
            serde_json::from_slice(raw).map_err(|error| MessageError::NotAnObject(error.to_string()))?;
        let slice =
            |value: Option<&RawValue>| value.map_or(NULL, |value| raw.slice_ref(value.get().as_bytes()));
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
                (Some(error), _) => Ok(Body::Response { id, outcome: Err(read_error(error)) }),
                (None, Some(result)) => Ok(Body::Response { id, outcome: Ok(slice(Some(result))) }),
                (None, None) => Err(MessageError::NotRpc),
            },
            (None, None) => Err(MessageError::NotRpc),
        }
    }
}

/// The methods that come most often need no memory of their own.
fn known(method: Cow<'_, str>) -> Cow<'static, str> {
    match method.as_ref() {
        "session/update" => Cow::Borrowed("session/update"),
        "session/request_permission" => Cow::Borrowed("session/request_permission"),
        _ => Cow::Owned(method.into_owned()),
    }
}

/// Reads an error object leniently: whatever is there is kept.
fn read_error(raw: &RawValue) -> RpcError {
    serde_json::from_str(raw.get()).unwrap_or_else(|_| {
        let data = serde_json::from_str(raw.get()).ok();
        RpcError { code: 0, message: "the error object cannot be read".to_owned(), data }
    })
}

/// A message to be sent.
#[derive(Serialize)]
pub(crate) struct Outgoing<'a, P: ?Sized> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a P>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a P>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

impl<'a, P: Serialize + ?Sized> Outgoing<'a, P> {
    const EMPTY: Self =
        Self { jsonrpc: "2.0", id: None, method: None, params: None, result: None, error: None };

    pub(crate) fn request(id: &MessageId, method: &'a str, params: &'a P) -> serde_json::Result<Bytes> {
        Outgoing { id: Some(raw_id(id)?), method: Some(method), params: Some(params), ..Self::EMPTY }.encode()
    }

    pub(crate) fn notification(method: &'a str, params: &'a P) -> serde_json::Result<Bytes> {
        Outgoing { method: Some(method), params: Some(params), ..Self::EMPTY }.encode()
    }

    pub(crate) fn response(
        id: &MessageId,
        outcome: Result<&'a P, &'a RpcError>,
    ) -> serde_json::Result<Bytes> {
        let (result, error) = (outcome.ok(), outcome.err());
        Outgoing { id: Some(raw_id(id)?), result, error, ..Self::EMPTY }.encode()
    }

    fn encode(&self) -> serde_json::Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from)
    }
}

fn raw_id(id: &MessageId) -> serde_json::Result<&RawValue> {
    serde_json::from_str(id.as_json())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Result<Body, MessageError> {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).map(|message| message.body)
    }

    #[test]
    fn the_three_kinds_are_told_apart() {
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
    fn an_update_is_told_by_its_looks_and_anything_odd_the_slow_way() {
        let update = r#"{"sessionId":"s","update":{"sessionUpdate":"x"}}"#;
        let usual = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{update}}}"#);
        assert!(matches!(parse(&usual), Ok(Body::Update { params }) if params == update.as_bytes()));
        let spaced = format!(r#"{{ "method":"session/update","params":{update}}}"#);
        assert!(matches!(parse(&spaced), Ok(Body::Notification { .. })));
        let request = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{update},"id":1}}"#);
        assert!(matches!(parse(&request), Ok(Body::Request { .. })));
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
    fn what_is_no_message_is_an_error_and_no_panic() {
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
        let message =
            Message::parse(Bytes::from_static(b"{\"method\":\"x\",\"params\":\"a\xffb\"}")).unwrap();
        assert!(
            matches!(message.body, Body::Notification { params, .. } if params == "\"a\u{fffd}b\"".as_bytes())
        );
    }

    #[test]
    fn payloads_are_slices_of_the_message() {
        let raw = Bytes::from_static(br#"{"method":"x","params":{"big":"payload"}}"#);
        let message = Message::parse(raw.clone()).unwrap();
        let Body::Notification { params, .. } = message.body else { panic!("a notification") };
        assert!(raw.as_ptr_range().contains(&params.as_ptr()));
    }

    #[test]
    fn messages_are_written_as_the_protocol_wants_them() {
        let id = MessageId::from_json("\"a\"");
        let params = json!({"x": 1});
        let cases = [
            (
                Outgoing::request(&id, "m", &params),
                r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#,
            ),
            (Outgoing::notification("m", &params), r#"{"jsonrpc":"2.0","method":"m","params":{"x":1}}"#),
            (Outgoing::response(&id, Ok(&params)), r#"{"jsonrpc":"2.0","id":"a","result":{"x":1}}"#),
            (
                Outgoing::<()>::response(&id, Err(&RpcError::new(-1, "no"))),
                r#"{"jsonrpc":"2.0","id":"a","error":{"code":-1,"message":"no"}}"#,
            ),
        ];
        for (bytes, text) in cases {
            assert_eq!(bytes.unwrap(), text.as_bytes());
        }
    }
}
