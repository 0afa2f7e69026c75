//! One JSON-RPC message to be sent.

use std::{io, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use super::{Ids, MessageId, RpcError};
use crate::events::peek_session;

/// Enough for a short message, so that most are written without growing.
const CAPACITY: usize = 256;

/// A request or a notification as it is sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) body: Bytes,
    /// The session that its parameters name.
    pub(crate) session: Option<Arc<str>>,
}

impl Outgoing {
    /// A request under a number of this client.
    pub(crate) fn request(
        ids: &Ids,
        number: u64,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> serde_json::Result<Self> {
        let mut text = Vec::with_capacity(CAPACITY);
        text.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        ids.write(number, &mut text);
        text.push(b',');
        Self::finish(text, method, params)
    }

    pub(crate) fn notification(method: &str, params: &(impl Serialize + ?Sized)) -> serde_json::Result<Self> {
        let mut text = Vec::with_capacity(CAPACITY);
        text.extend_from_slice(br#"{"jsonrpc":"2.0","#);
        Self::finish(text, method, params)
    }

    fn finish(
        mut text: Vec<u8>,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> serde_json::Result<Self> {
        text.extend_from_slice(br#""method":"#);
        serde_json::to_writer(&mut text, method)?;
        text.extend_from_slice(br#","params":"#);
        let start = text.len();
        serde_json::to_writer(&mut text, params)?;
        let session = peek_session(&text[start..]).map(Arc::from);
        text.push(b'}');
        Ok(Self { body: text.into(), session })
    }

    /// The response to an agent request.
    pub(crate) fn response<T: Serialize + ?Sized>(
        id: &MessageId,
        outcome: Result<&T, &RpcError>,
    ) -> serde_json::Result<Bytes> {
        let mut text = Vec::with_capacity(CAPACITY);
        Self::write_response(&mut text, id, outcome)?;
        Ok(text.into())
    }

    /// Writes the response to an agent request.
    pub(crate) fn write_response<T: Serialize + ?Sized>(
        text: &mut impl io::Write,
        id: &MessageId,
        outcome: Result<&T, &RpcError>,
    ) -> serde_json::Result<()> {
        let mut write = |part: &[u8]| text.write_all(part).map_err(serde_json::Error::io);
        write(br#"{"jsonrpc":"2.0","id":"#)?;
        write(id.as_json().as_bytes())?;
        match outcome {
            Ok(result) => {
                write(br#","result":"#)?;
                serde_json::to_writer(&mut *text, result)?;
            }
            Err(error) => {
                write(br#","error":"#)?;
                serde_json::to_writer(&mut *text, error)?;
            }
        }
        text.write_all(b"}").map_err(serde_json::Error::io)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_written_as_the_protocol_wants_them() {
        let (id, ids) = (MessageId::from_json("\"a\""), Ids::new().unwrap());
        let params = json!({"x": 1});
        let own = ids.id(7);
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":{},"method":"m\"","params":{{"x":1}}}}"#, own.as_json());
        assert_eq!(Outgoing::request(&ids, 7, "m\"", &params).unwrap().body, request.as_bytes());
        let notification = Outgoing::notification("m", &params).unwrap();
        assert_eq!(notification.body, r#"{"jsonrpc":"2.0","method":"m","params":{"x":1}}"#.as_bytes());
        let result = Outgoing::response(&id, Ok(&params)).unwrap();
        assert_eq!(result, r#"{"jsonrpc":"2.0","id":"a","result":{"x":1}}"#.as_bytes());
        let error = Outgoing::response::<()>(&id, Err(&RpcError::new(-1, "no"))).unwrap();
        assert_eq!(error, r#"{"jsonrpc":"2.0","id":"a","error":{"code":-1,"message":"no"}}"#.as_bytes());
    }

    #[test]
    fn the_session_is_the_one_that_the_parameters_name() {
        let table = [
            (json!({"sessionId": "s-1", "x": 1}), Some("s-1")),
            (json!({"x": {"sessionId": "other"}, "sessionId": "s-\"1"}), Some("s-\"1")),
            (json!({"x": {"sessionId": "other"}}), None),
            (json!([{"sessionId": "other"}]), None),
            (json!(null), None),
        ];
        for (params, session) in table {
            let outgoing = Outgoing::notification("m", &params).unwrap();
            assert_eq!(outgoing.session.as_deref(), session, "{params}");
        }
    }
}
