//! An agent request as it arrives.

use std::sync::Arc;

use acp_http_client as wire;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::limits::Limits;
use crate::client::reading::id_text;
use crate::convert::decoded::decoded_size;
use crate::requests::{Admission, Params, REQUEST_PERMISSION};

/// An agent request and its responder.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) method: String,
    /// The session that it names, if it names one that can be read.
    pub(super) session: Option<String>,
    /// The parameters, or why they cannot be decoded.
    pub(super) params: Result<Arc<Params>, Refused>,
    pub(super) responder: wire::Responder,
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the parameters cannot be decoded: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the parameters take {size} bytes when decoded; all open requests may take {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("too many requests are open; the limit is {limit}")]
    TooMany { limit: usize },
}

impl Refused {
    pub(super) fn to_rpc(&self) -> wire::RpcError {
        match self {
            Self::Json(error) => wire::RpcError::invalid_params(error),
            Self::TooLarge { .. } | Self::TooMany { .. } => wire::RpcError::internal(self),
        }
    }
}

/// The field with the session id. A request that has it twice is not parsed: parsers differ in which one counts.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(rename = "sessionId", borrow)]
    session_id: &'a RawValue,
}

/// Reads the session id of parameters of any size and depth.
pub(super) fn read_session(params: &[u8], limit: usize) -> Option<String> {
    /// How many bytes of text one byte of a string takes at most.
    const ESCAPED: usize = 6;
    // A list would be read as the fields in their order.
    let is_object = params.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let text = serde_json::from_slice::<Named<'_>>(params).ok().filter(|_| is_object)?.session_id.get();
    let is_short = text.len() <= limit.saturating_mul(ESCAPED).saturating_add(2);
    let id: String = is_short.then(|| serde_json::from_str(text).ok())??;
    (id.len() <= limit).then_some(id)
}

impl Incoming {
    pub(super) fn read(
        request: &wire::AgentRequest,
        session: Option<String>,
        responder: wire::Responder,
        limits: &Limits,
        admission: &Arc<Admission>,
    ) -> Self {
        let method = request.method().to_owned();
        let params = decode(request, limits, admission);
        Self { method, session, params, responder }
    }
}

fn decode(
    request: &wire::AgentRequest,
    limits: &Limits,
    admission: &Arc<Admission>,
) -> Result<Arc<Params>, Refused> {
    let size = decoded_size(request.params().as_bytes());
    // A permission request holds its tool call besides the parameters.
    let size = if request.method() == REQUEST_PERMISSION { size.saturating_mul(2) } else { size };
    let admitted = admission.admit(size);
    let admitted = admitted.ok_or(Refused::TooLarge { size, limit: limits.open_request_bytes })?;
    Ok(Arc::new(Params::new(id_text(request.id()), request.params().parse()?, admitted)))
}

#[cfg(test)]
mod tests {
    use super::read_session;

    #[test]
    fn a_session_id_is_read_only_where_every_reader_reads_the_same() {
        let deep = format!(r#"{{"deep":{}{},"sessionId":"s"}}"#, "[".repeat(500), "]".repeat(500));
        let long = format!(r#"{{"sessionId":"{}"}}"#, "x".repeat(11));
        let full = format!(r#"{{"sessionId":"{}"}}"#, "x".repeat(10));
        let table: [(&str, Option<&str>); 13] = [
            (r#"{"sessionId":"s"}"#, Some("s")),
            (r#" {"a":[1,{}],"sessionId":"\u0073"}"#, Some("s")),
            (&deep, Some("s")),
            (&full, Some("xxxxxxxxxx")),
            (&long, None),
            (r#"{"sessionId":"a","sessionId":"b"}"#, None),
            (r#"{"sessionId":5}"#, None),
            (r#"{"sessionId":null}"#, None),
            (r#"{"sessionId":["s"]}"#, None),
            (r#"["s"]"#, None),
            (r#"{}"#, None),
            ("null", None),
            (r#"{"sessionId":"s""#, None),
        ];
        for (params, expected) in table {
            assert_eq!(read_session(params.as_bytes(), 10).as_deref(), expected, "{params}");
        }
    }
}
