//! Responses of the control plane.

use std::error::Error as _;
use std::fmt::Debug;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::Error;
use crate::client::limits::{BodyKind, Limits};
use crate::control::processes::{LogEntry, ProcessConfig, ProcessInfo, RunOutput};
use crate::control::terminal::FromServer;
use crate::control::{
    AgentInfo, AgentList, FsEntries, FsEntry, FsMoved, FsPath, FsStat, FsUploaded, FsWritten, Health,
    InstallResult, Privacy, decode,
};
use crate::convert::text::is_unsafe;
use crate::error::{HttpError, Problem};

/// Checks that any body either decodes to a value that survives a round trip, or causes an error. The error is safe to
/// print, and does not quote a body that may contain secrets.
pub fn control_response(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    round_trip::<Health>(&body);
    round_trip::<AgentList>(&body);
    round_trip::<AgentInfo>(&body);
    round_trip::<InstallResult>(&body);
    round_trip::<FsEntry>(&body);
    round_trip::<FsStat>(&body);
    round_trip::<FsWritten>(&body);
    round_trip::<FsPath>(&body);
    round_trip::<FsMoved>(&body);
    round_trip::<FsUploaded>(&body);
    round_trip::<ProcessInfo>(&body);
    round_trip::<ProcessConfig>(&body);
    round_trip::<RunOutput>(&body);
    limits(data);
    problem(data);
    frame(data);
    if let Some(entries) = read::<FsEntries>(&body) {
        assert!(entries.entries.len() <= data.len(), "there are more entries than bytes");
    }
    if let Some(entry) = read::<LogEntry>(&body) {
        assert!(entry.data.len() <= data.len(), "there are more bytes than were sent");
    }
}

/// Checks that a body is accepted up to its limits, as text and decoded, and not above.
fn limits(data: &[u8]) {
    // An empty body is not JSON, and any multiple of its size is zero.
    let Some(below) = data.len().checked_sub(1) else { return };
    let at = |text: usize, expansion: usize| {
        Limits::default().control(text).expansion(expansion).check(BodyKind::Control, "fuzz", data)
    };
    let size = at(data.len(), usize::MAX).expect("a body at the limit is accepted");
    assert!(matches!(at(below, usize::MAX), Err(Error::MessageTooLarge { .. })), "it is above the limit");
    let fits = size.div_ceil(data.len());
    assert_eq!(at(data.len(), fits).expect("a decoded body at the limit is accepted"), size);
    let above = fits.checked_sub(1).map(|expansion| at(data.len(), expansion));
    assert!(matches!(above, None | Some(Err(Error::DecodedTooLarge { .. }))), "{above:?}");
}

/// Checks that the body of a failure is safe to print, and that a problem in it can be written and read again.
fn problem(data: &[u8]) {
    let problem = Problem::from_json(data);
    if let Some(problem) = &problem {
        let written = serde_json::to_vec(problem).expect("what was read can be written");
        assert_eq!(Problem::from_json(&written).as_ref(), Some(problem));
    }
    let body = String::from_utf8_lossy(data).into_owned();
    let error = Error::from_http(HttpError {
        what: "fuzz".to_owned(),
        status: 500,
        content_type: None,
        problem,
        body,
        retry_after: None,
    });
    assert!(!error.to_string().contains(is_unsafe), "a terminal acts on {error}");
}

/// Checks that a message of a terminal is read, or is an error that is safe to print and quotes it.
fn frame(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Err(error) = FromServer::read(&text) else { return };
    assert!(!error.to_string().contains(is_unsafe), "a terminal acts on {error}");
    let Error::Decode { raw, source, .. } = error else { panic!("{error:?}") };
    assert!(raw == text && !source.to_string().contains(is_unsafe), "{source}");
}

fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(body: &Bytes) {
    let Some(value) = read::<T>(body) else { return };
    let written = serde_json::to_vec(&value).expect("what was read can be written");
    let again = decode::<T>("fuzz", Privacy::Public, &written.into());
    assert_eq!(again.expect("what was written can be read"), value);
}

fn read<T: DeserializeOwned + Debug>(body: &Bytes) -> Option<T> {
    let error = match decode::<T>("fuzz", Privacy::Public, body) {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let Error::Decode { raw, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*raw, String::from_utf8_lossy(body));
    for text in [error.to_string(), error.source().map(ToString::to_string).unwrap_or_default()] {
        assert!(!text.contains(is_unsafe), "a terminal acts on {text:?}");
    }
    let Err(Error::Decode { raw, source, .. }) = decode::<T>("fuzz", Privacy::Private, body) else {
        panic!("the privacy of a response changes its meaning");
    };
    let place = source.to_string();
    let numbers = place.strip_prefix("line ").and_then(|place| place.split_once(", column "));
    let is_number = |text: &str| text.parse::<usize>().is_ok();
    assert!(raw.is_empty() && numbers.is_some_and(|(line, column)| is_number(line) && is_number(column)));
    None
}
