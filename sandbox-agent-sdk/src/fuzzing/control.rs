//! Responses of the control plane.

use std::error::Error as _;
use std::fmt::Debug;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::Error;
use crate::control::processes::{LogEntry, ProcessConfig, ProcessInfo, RunOutput};
use crate::control::{
    AgentInfo, AgentList, FsEntries, FsEntry, FsMoved, FsPath, FsStat, FsUploaded, FsWritten, Health,
    InstallResult, Privacy, decode,
};
use crate::convert::text::is_unsafe;

/// Checks that any body is either a value that can be written and read again, or an error that is safe to print and,
/// where the body may have secrets, quotes nothing of it.
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
    if let Some(entries) = read::<FsEntries>(&body) {
        assert!(entries.entries.len() <= data.len(), "there are more entries than bytes");
    }
    if let Some(entry) = read::<LogEntry>(&body) {
        assert!(entry.data.len() <= data.len(), "there are more bytes than were sent");
    }
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
